//! Native checkpoints, imports from PyTorch, exports, and what is said about bad files.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use burn::module::Param;
use burn::tensor::{Device, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;
use ttac::backbone::{Architecture, Backbone, Network, map_tensors, tensors};
use ttac::checkpoint::{
    Augmentation, Checkpoint, FORMAT, Header, InputContract, Objective, Provenance, export,
    export_bytes, fingerprint, foreign_tensors, import, import_tensors,
};
use ttac::{Error, Result};

use crate::fixture::{self, filled};

/// A named architecture for ten classes with some fields changed.
fn changed(name: &str, fields: &[(&str, &str)]) -> Architecture {
    let named = Architecture::by_name(name, 10).unwrap();
    fields.iter().fold(named, |architecture, (field, value)| {
        architecture.with_field(field, value).unwrap()
    })
}

fn tiny() -> Architecture {
    changed("resnet20-cifar", &[("depth", "8"), ("width", "4")])
}

fn by_formula() -> Network {
    filled(tiny().blank(&Device::flex()).unwrap(), str::to_owned)
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        header: Header {
            format: FORMAT,
            architecture: tiny(),
            classes: (0..10).map(|i| format!("class {i}")).collect(),
            input: InputContract::Images {
                height: 32,
                width: 32,
                mean: [0.485, 0.456, 0.406],
                std: [0.229, 0.224, 0.225],
            },
            augmentation: Augmentation::PadCropFlip,
            objective: Objective::Plain,
            provenance: Provenance::default(),
        },
        network: by_formula(),
    }
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// An error as the command shows it, without the name of the folder.
    fn message<T>(&self, result: Result<T>) -> String {
        let error = result.map(|_| ()).unwrap_err();
        let hint = error.hint().map(|hint| format!("\nhint: {hint}"));
        let text = format!("{error}{}", hint.unwrap_or_default());
        text.replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn load(path: &Path) -> Result<Checkpoint> {
    Checkpoint::load(path, &Device::flex())
}

fn import_tiny(path: &Path) -> Result<(Network, ttac::checkpoint::LoadReport)> {
    import(path, &tiny(), false, &Device::flex())
}

fn torch_file(name: &str) -> PathBuf {
    fixture::path("checkpoints").join(name)
}

#[test]
fn a_checkpoint_survives_the_round_trip() {
    let folder = Folder::new();
    let path = folder.file("deep/model.safetensors");
    let original = checkpoint();
    original.save(&path).unwrap();
    let loaded = load(&path).unwrap();
    assert_eq!(loaded.header, original.header);
    assert_eq!(tensors(&loaded.network), tensors(&original.network));
    let print = |c: &Checkpoint| fingerprint(&c.header.architecture, &c.network);
    assert_eq!(print(&loaded), print(&original));
    assert_eq!(Checkpoint::load_header(&path).unwrap(), original.header);
}

#[test]
fn the_fingerprint_tells_weights_apart() {
    let network = by_formula();
    let other = map_tensors(network.clone(), |path, _, _| {
        let bias = path == "linear.bias";
        bias.then(|| burn::tensor::TensorData::new(vec![0.0_f32; 10], [10]))
    });
    assert_ne!(fingerprint(&tiny(), &network), fingerprint(&tiny(), &other));
}

#[test]
fn pytorch_files_import_to_the_same_values() {
    for name in ["zip.pt", "legacy.th"] {
        let (network, report) = import_tiny(&torch_file(name)).unwrap();
        assert_eq!(tensors(&network), tensors(&by_formula()), "{name}");
        assert!(report.is_complete());
        // Seven convolutions, seven norms of four tensors, one linear layer.
        assert_eq!(report.loaded, 7 + 7 * 4 + 2);
        assert_eq!(report.ignored, 7);
    }
}

#[test]
fn an_export_imports_again_and_has_the_counters_pytorch_wants() {
    let folder = Folder::new();
    let path = folder.file("weights.safetensors");
    export(&checkpoint(), &path).unwrap();
    let (network, report) = import_tiny(&path).unwrap();
    assert_eq!(tensors(&network), tensors(&by_formula()));
    assert!(report.is_complete());
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let counter = file.tensor("layer1.0.bn2.num_batches_tracked").unwrap();
    assert_eq!((counter.dtype(), counter.shape().len()), (Dtype::I64, 0));
}

#[test]
fn weights_come_and_go_without_files() {
    let folder = Folder::new();
    let path = folder.file("weights.safetensors");
    export(&checkpoint(), &path).unwrap();
    assert_eq!(
        export_bytes(&checkpoint().network),
        std::fs::read(&path).unwrap()
    );
    let given = |prefix: &str| -> BTreeMap<_, _> {
        let values = tensors(&by_formula()).into_iter();
        let named = values.map(|(key, data)| (format!("{prefix}{key}"), data));
        named.collect()
    };
    let import = |found| {
        let (origin, device) = (Path::new("state_dict"), Device::flex());
        import_tensors(origin, found, &tiny(), false, &device)
    };
    for prefix in ["", "state_dict.module."] {
        let (network, report) = import(given(prefix)).unwrap();
        assert_eq!(tensors(&network), tensors(&by_formula()));
        assert!(report.is_complete());
    }
    let mut missing = given("");
    missing.remove("linear.bias");
    let message = import(missing).unwrap_err().to_string();
    assert!(
        message.starts_with("`state_dict` does not fit resnet-cifar"),
        "{message}"
    );
}

#[test]
fn foreign_files_can_be_listed() {
    let keys = foreign_tensors(&torch_file("legacy.th")).unwrap();
    let weight = ("state_dict.module.linear.weight".to_owned(), vec![10, 16]);
    assert!(keys.contains(&weight), "{keys:?}");
}

#[test]
fn a_hostile_pickle_never_runs() {
    // Beside good weights the command is dead matter; the weights are read.
    let (network, _) = import_tiny(&torch_file("hostile.pt")).unwrap();
    assert_eq!(tensors(&network), tensors(&by_formula()));
    // Alone it is no checkpoint.
    let folder = Folder::new();
    let command = b"cposix\nsystem\n(S'touch a-pickle-ran-this'\ntR.";
    let message = folder.message(import_tiny(&folder.write("bare.pth", command)));
    assert!(
        message.starts_with("`bare.pth` is not a PyTorch checkpoint: "),
        "{message}"
    );
    assert!(!Path::new("a-pickle-ran-this").exists());
}

#[test]
fn damaged_pytorch_files_are_named() {
    let folder = Folder::new();
    for name in ["zip.pt", "legacy.th"] {
        let bytes = std::fs::read(torch_file(name)).unwrap();
        for length in [0, 1, 7, 100, bytes.len() / 2, bytes.len() - 100] {
            let path = folder.write(name, &bytes[..length]);
            let message = folder.message(import_tiny(&path));
            let start = format!("`{name}` is not a PyTorch checkpoint: ");
            assert!(message.starts_with(&start), "{length} bytes: {message}");
        }
    }
    let garbage: Vec<u8> = (0..5000_u32).map(|i| (i * i % 253) as u8).collect();
    let message = folder.message(import_tiny(&folder.write("garbage.pth", garbage)));
    assert!(message.starts_with("`garbage.pth` is not a PyTorch checkpoint: "));
    assert!(
        message.contains("\nhint: expected is what `torch.save(model.state_dict(), path)` writes")
    );
}

#[test]
fn a_truncated_safetensors_file_is_named() {
    let folder = Folder::new();
    let path = folder.file("model.safetensors");
    checkpoint().save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 4, 12, 500, bytes.len() - 1] {
        let path = folder.write("cut.safetensors", &bytes[..length]);
        let message = folder.message(load(&path));
        assert!(
            message.starts_with("`cut.safetensors` is not a ttac checkpoint: "),
            "{length} bytes: {message}"
        );
    }
}

#[test]
fn a_missing_file_is_named() {
    let folder = Folder::new();
    let message = folder.message(load(&folder.file("nothing.safetensors")));
    assert_eq!(message, "cannot read `nothing.safetensors`");
}

#[test]
fn another_architecture_is_reported_key_by_key() {
    let folder = Folder::new();
    let path = torch_file("zip.pt");
    let deeper = tiny().with_field("depth", "14").unwrap();
    let error = import(&path, &deeper, false, &Device::flex()).unwrap_err();
    let Error::Weights { report, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(report.missing.len(), 3 * 10);
    assert_eq!(report.missing[0].0, "layer1.1.conv1.weight");
    let message = folder.message::<()>(Err(error));
    assert!(
        message.contains("does not fit resnet-cifar\n  loaded      37 tensors"),
        "{message}"
    );
    assert!(message.contains("\n  missing     layer1.1.conv1.weight [4, 4, 3, 3]"));
    assert!(
        message.contains("\nhint: check the architecture"),
        "{message}"
    );

    let other = Architecture::by_name("resnet50", 10).unwrap();
    let message = folder.message(import(&path, &other, false, &Device::flex()));
    assert!(
        message.contains("shape       conv1.weight expected [64, 3, 7, 7], found [4, 3, 3, 3]")
    );
    assert!(
        message.contains("unexpected  linear.weight [10, 16]"),
        "{message}"
    );
}

#[test]
fn norms_that_a_file_of_dgcnn_holds_twice_are_passed_over() {
    let fields = [("k", "6"), ("width", "8"), ("embedding", "32")];
    let architecture = changed("dgcnn", &fields);
    let network = architecture.init(3, &Device::flex()).unwrap();
    let mut values = tensors(&network);
    for layer in 1..=5 {
        for part in ["weight", "bias", "running_mean", "running_var"] {
            let norm = values[&format!("bn{layer}.{part}")].clone();
            values.insert(format!("conv{layer}.1.{part}"), norm);
        }
    }
    let views = values.iter().map(|(key, data)| {
        let view = TensorView::new(Dtype::F32, data.shape().to_vec(), data.as_bytes());
        (key, view.unwrap())
    });
    let folder = Folder::new();
    let bytes = safetensors::serialize(views, None).unwrap();
    let path = folder.write("dgcnn.safetensors", bytes);
    let (read, report) = import(&path, &architecture, false, &Device::flex()).unwrap();
    assert_eq!(tensors(&read), tensors(&network));
    assert!(report.is_complete(), "{report}");
}

#[test]
fn partial_imports_are_possible_when_asked_for() {
    let deeper = tiny().with_field("depth", "14").unwrap();
    let (network, report) = import(&torch_file("zip.pt"), &deeper, true, &Device::flex()).unwrap();
    assert_eq!((report.loaded, report.missing.len()), (37, 30));
    assert_eq!(
        tensors(&network)["conv1.weight"],
        tensors(&by_formula())["conv1.weight"]
    );
}

#[test]
fn a_wrong_number_of_classes_is_explained() {
    let folder = Folder::new();
    let hundred = tiny().with_field("num_classes", "100").unwrap();
    let result = import(&torch_file("zip.pt"), &hundred, false, &Device::flex());
    let message = folder.message(result);
    assert!(message.contains("shape       linear.weight expected [100, 16], found [10, 16]"));
    let hint = "hint: the file's classifier has 10 classes: build the network with as many";
    assert!(message.ends_with(hint), "{message}");
}

#[test]
fn weights_that_are_not_numbers_are_refused_even_partially() {
    let folder = Folder::new();
    for broken in [f32::NAN, f32::INFINITY] {
        let mut damaged = checkpoint();
        let spoilt: Vec<f32> = std::iter::once(broken).chain([0.0; 9]).collect();
        damaged.network = map_tensors(damaged.network, |path, _, _| {
            let bias = path == "linear.bias";
            bias.then(|| burn::tensor::TensorData::new(spoilt.clone(), [10]))
        });
        let weights = folder.file("weights.safetensors");
        export(&damaged, &weights).unwrap();
        let message = folder.message(import(&weights, &tiny(), true, &Device::flex()));
        assert!(
            message.contains("not finite  linear.bias 1 values are NaN or infinite"),
            "{message}"
        );
        // And such a network is never saved over a good one.
        let path = folder.write("model.safetensors", "good");
        assert!(damaged.save(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "good");
    }
}

/// A checkpoint whose header text was changed.
fn with_header(folder: &Folder, change: impl Fn(String) -> String) -> PathBuf {
    let path = folder.file("lying.safetensors");
    checkpoint().save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let header = metadata.metadata().as_ref().unwrap()["ttac"].clone();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let views: Vec<(String, TensorView<'_>)> = file.tensors();
    let metadata = HashMap::from([("ttac".to_owned(), change(header))]);
    let changed = safetensors::serialize(views, Some(metadata)).unwrap();
    folder.write("lying.safetensors", changed)
}

#[test]
fn a_header_that_lies_is_found_out() {
    let folder = Folder::new();
    for (from, to, expected) in [
        // The shape it promises is not the one it has.
        (
            "\"width\":4",
            "\"width\":8",
            "shape       conv1.weight expected [8, 3, 3, 3], found [4, 3, 3, 3]",
        ),
        // Nor may it make us allocate without bounds.
        (
            "\"width\":4",
            "\"width\":4000000000",
            "`width` must be 1 to 100000, found 4000000000",
        ),
        (
            "\"depth\":8",
            "\"depth\":9",
            "`depth` must be 6n + 2 with n >= 1, found 9",
        ),
        ("\"class 3\",", "", "9 class names for 10 classes"),
        (
            "0.229",
            "0.0",
            "standard deviation [0.0, 0.224, 0.225] is not positive",
        ),
        (
            "\"format\":1",
            "\"format\":7",
            "header version 7, expected 1",
        ),
        (
            "\"objective\":\"plain\"",
            "\"objective\":\"world peace\"",
            "its header is damaged",
        ),
        (
            "\"classes\"",
            "\"colour\":1,\"classes\"",
            "unknown field `colour`",
        ),
    ] {
        let path = with_header(&folder, |header| {
            assert!(header.contains(from), "{header}");
            header.replace(from, to)
        });
        let text = folder.message(load(&path));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn safetensors_without_our_header_point_to_import() {
    let folder = Folder::new();
    let path = folder.file("plain.safetensors");
    export(&checkpoint(), &path).unwrap();
    assert_eq!(
        folder.message(load(&path)),
        "`plain.safetensors` is not a ttac checkpoint: safetensors without a ttac header\n\
         hint: weights of other programs have to be imported"
    );
}

#[test]
fn an_output_that_cannot_be_written_keeps_the_old_file() {
    let folder = Folder::new();
    // A folder where the file should go: no user, not even root, can write there.
    std::fs::create_dir(folder.file("model.safetensors")).unwrap();
    let message = folder.message(checkpoint().save(&folder.file("model.safetensors")));
    assert!(message == "cannot write `model.safetensors`", "{message}");
    // A file where a folder should be.
    let old = folder.write("old", "precious");
    let message = folder.message(checkpoint().save(&folder.file("old/model.safetensors")));
    assert!(message == "cannot create `old`", "{message}");
    assert_eq!(std::fs::read_to_string(old).unwrap(), "precious");
}

#[test]
fn unknown_architectures_get_the_nearest_name() {
    let folder = Folder::new();
    let message = |name| folder.message(Architecture::by_name(name, 10));
    assert_eq!(
        message("resnet20-cifer"),
        "unknown architecture `resnet20-cifer`\nhint: did you mean `resnet20-cifar`?"
    );
    assert_eq!(
        message("wrn28-10"),
        "unknown architecture `wrn28-10`\nhint: did you mean `wrn-28-10`?"
    );
    assert!(message("alexnet!").contains("hint: the known ones are `resnet20-cifar`, "));
    let field = folder.message(tiny().with_field("with", "4"));
    assert_eq!(
        field,
        "invalid architecture: no field `with`; the fields are `depth`, `num_classes`, `projection`, `width`"
    );
}

#[test]
fn buffers_never_ask_for_gradients() {
    use burn::module::{Module, ModuleVisitor};
    struct Trained(Vec<usize>);
    impl ModuleVisitor for Trained {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(usize::from(param.val().is_require_grad()));
        }
    }
    let mut trained = Trained(Vec::new());
    let network = by_formula().train().set_require_grad(true);
    network.visit(&mut trained);
    assert_eq!(trained.0.len(), 37);
    assert_eq!(trained.0.iter().sum::<usize>(), 37 - 14);
    assert_eq!(network.num_features(), 16);
}

fn transformer(fields: &[(&str, &str)]) -> Architecture {
    let small = [
        ("width", "24"),
        ("heads", "3"),
        ("depth", "2"),
        ("mlp", "40"),
    ];
    changed("vit-tiny-4", &[&small, fields].concat())
}

fn transformer_checkpoint(architecture: Architecture) -> Checkpoint {
    let network = architecture.init(3, &Device::flex()).unwrap();
    let size = architecture.input().size();
    let mut checkpoint = checkpoint();
    checkpoint.header.architecture = architecture;
    let InputContract::Images { height, width, .. } = &mut checkpoint.header.input else {
        panic!("{:?}", checkpoint.header.input);
    };
    [*height, *width] = size;
    Checkpoint {
        network,
        ..checkpoint
    }
}

#[test]
fn a_transformer_goes_out_and_comes_back() {
    let folder = Folder::new();
    let original = transformer_checkpoint(transformer(&[]));
    let path = folder.file("model.safetensors");
    original.save(&path).unwrap();
    assert_eq!(
        tensors(&load(&path).unwrap().network),
        tensors(&original.network)
    );
    let path = folder.file("weights.safetensors");
    export(&original, &path).unwrap();
    let (network, report) = import(&path, &transformer(&[]), false, &Device::flex()).unwrap();
    assert_eq!(tensors(&network), tensors(&original.network));
    // Class token, positions, patches, twelve tensors per block, norm, classifier.
    assert_eq!(report.loaded, 2 + 2 + 2 * 12 + 2 + 2);
}

#[test]
fn a_transformer_of_other_sizes_is_named_with_both_shapes_and_the_way_out() {
    let folder = Folder::new();
    let path = folder.file("weights.safetensors");
    let written = |fields: &[(&str, &str)]| {
        export(&transformer_checkpoint(transformer(fields)), &path).unwrap();
    };
    let message = || folder.message(import(&path, &transformer(&[]), false, &Device::flex()));
    let hint = |fields: &str| format!("hint: the file holds a network of other sizes: {fields}");

    written(&[("image_size", "56")]);
    let found = message();
    let shape = "shape       pos_embed expected [1, 65, 24], found [1, 197, 24]";
    assert!(found.contains(shape), "{found}");
    assert!(found.ends_with(&hint("`image_size` 56")), "{found}");

    written(&[("image_size", "224"), ("patch", "16")]);
    let found = message();
    let shape = "shape       patch_embed.proj.weight expected [24, 3, 4, 4], found [24, 3, 16, 16]";
    assert!(found.contains(shape), "{found}");
    assert!(
        found.ends_with(&hint("`patch` 16, `image_size` 224")),
        "{found}"
    );

    written(&[("depth", "3"), ("mlp", "48")]);
    let found = message();
    assert!(found.ends_with(&hint("`mlp` 48, `depth` 3")), "{found}");
    written(&[("depth", "1")]);
    let found = message();
    assert!(found.ends_with(&hint("`depth` 1")), "{found}");

    written(&[("width", "48")]);
    let found = message();
    let untold = hint("`width` 48; no shape tells `heads`, which has to be set too");
    assert!(found.ends_with(&untold), "{found}");

    written(&[("num_classes", "7")]);
    let found = message();
    let classes = "hint: the file's classifier has 7 classes: build the network with as many";
    assert!(found.ends_with(classes), "{found}");
}

#[test]
fn a_transformer_with_another_input_contract_is_not_written() {
    let folder = Folder::new();
    let mut wrong = transformer_checkpoint(transformer(&[]));
    let InputContract::Images { height, .. } = &mut wrong.header.input else {
        panic!("{:?}", wrong.header.input);
    };
    *height = 28;
    let found = folder.message(wrong.save(&folder.file("model.safetensors")));
    assert_eq!(
        found,
        "invalid checkpoint header: images of 28 x 32 pixels for a network of 32 x 32 alone"
    );
}
