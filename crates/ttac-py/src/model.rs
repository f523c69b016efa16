//! A trained network, as Python sees it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use numpy::{IntoPyArray, PyArray2, PyArrayMethods, PyReadonlyArray4, PyUntypedArrayMethods};
use pyo3::prelude::*;
use ttac::backbone::{Architecture, Backbone, InputForm, Network, NormMode};
use ttac::burn::tensor::{Device, Tensor, TensorData};
use ttac::checkpoint::{
    Augmentation, Checkpoint, FORMAT, Header, Objective, Provenance, export_bytes, import_graph,
    import_tensors,
};
use ttac::input::InputContract;
use ttac::{Predictor, Session};

use crate::answer::Answer;
use crate::arrays::{samples, state_dict, tensors};
use crate::errors::{compute, invalid, raise};

/// A trained classifier: the network, what it expects of its images, and its classes.
///
/// It never changes; a `Session` adapts a copy of it.
#[pyclass(module = "ttac", frozen)]
pub struct Model {
    /// The description that goes into a checkpoint.
    header: Header,
    inner: ttac::Model,
    /// What an import had to say.
    notes: Vec<String>,
    /// Answers without learning; made when it is first asked for.
    predictor: OnceLock<Predictor>,
}

impl Model {
    /// Takes over a checkpoint.
    pub fn new(checkpoint: &Checkpoint) -> Self {
        Self {
            header: checkpoint.header.clone(),
            inner: ttac::Model::from(checkpoint),
            notes: Vec::new(),
            predictor: OnceLock::new(),
        }
    }

    /// Returns the same model with the network of a session, whose fingerprint stays the source's.
    pub fn adapted(header: &Header, model: ttac::Model) -> Self {
        Self {
            header: header.clone(),
            inner: model,
            notes: Vec::new(),
            predictor: OnceLock::new(),
        }
    }

    /// Returns the model of the library.
    pub fn library(&self) -> &ttac::Model {
        &self.inner
    }

    /// Returns the description that goes into a checkpoint.
    pub fn header(&self) -> &Header {
        &self.header
    }

    fn predictor(&self) -> PyResult<&Predictor> {
        if let Some(predictor) = self.predictor.get() {
            return Ok(predictor);
        }
        let session = Session::builder(&self.inner).method("test").build();
        let predictor = session.map_err(raise)?.predictor();
        Ok(self.predictor.get_or_init(|| predictor))
    }

    /// Puts an imported network together.
    fn imported(
        architecture: Architecture,
        network: Network,
        classes: Vec<String>,
        (mean, std): ([f32; 3], [f32; 3]),
        source: String,
    ) -> PyResult<Self> {
        let input = match architecture.input() {
            InputForm::Clouds { points, fewest } => InputContract::Clouds { points, fewest },
            InputForm::Images {
                size: [height, width],
                ..
            } => InputContract::Images {
                height,
                width,
                mean,
                std,
            },
        };
        let problems = input.problems();
        if !problems.is_empty() {
            return Err(invalid(problems.join("; ")));
        }
        let header = Header {
            format: FORMAT,
            architecture,
            classes,
            input,
            augmentation: Augmentation::Unknown,
            objective: Objective::Plain,
            provenance: Provenance {
                program: ttac::experiment::PROGRAM.to_owned(),
                command: String::new(),
                source: Some(source),
            },
        };
        Ok(Self::new(&Checkpoint { header, network }))
    }
}

/// The names or the number of classes that a caller gives.
#[derive(FromPyObject)]
pub enum Classes {
    /// The number of classes.
    Count(usize),
    /// The name of every class.
    Names(Vec<String>),
}

impl Classes {
    /// Returns a name for each of the classes that a network has.
    fn named(given: Option<Self>, count: usize) -> PyResult<Vec<String>> {
        let found = match given {
            None => count,
            Some(Self::Count(found)) => found,
            Some(Self::Names(names)) if names.len() == count => return Ok(names),
            Some(Self::Names(names)) => names.len(),
        };
        if found != count {
            return Err(invalid(format!(
                "`classes`: expected {count}, as the network has scores, found {found}"
            )));
        }
        Ok((0..count).map(|class| format!("class {class}")).collect())
    }
}

/// Finds the mean and the standard deviation by a name, or as they were given.
fn normalisation(
    normalise: Option<&str>,
    mean: Option<[f32; 3]>,
    std: Option<[f32; 3]>,
) -> PyResult<Option<([f32; 3], [f32; 3])>> {
    let known = InputContract::NORMALISATIONS;
    match (normalise, mean, std) {
        (None, None, None) => Ok(None),
        (None, Some(mean), Some(std)) => Ok(Some((mean, std))),
        (Some(name), None, None) => match known.iter().find(|(known, ..)| *known == name) {
            Some((_, mean, std)) => Ok(Some((*mean, *std))),
            None => Err(invalid(format!(
                "`normalise`: expected `{}`, found `{name}`; `mean` and `std` take any other",
                known.map(|(name, ..)| name).join("`, `")
            ))),
        },
        _ => Err(invalid(
            "expected either `normalise` or both `mean` and `std`, found a part of them",
        )),
    }
}

/// The error of a network whose normalisation nobody told.
fn unknown_normalisation() -> PyErr {
    invalid(
        "how images are normalised is missing: give `mean` and `std`, or `normalise`, which is `imagenet`, `cifar10`, `cifar100` or `none`. \
         The network does not say, and a wrong guess silently costs accuracy",
    )
}

#[pymethods]
impl Model {
    /// Reads a checkpoint that `ttac` wrote.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        compute(py, || {
            let checkpoint = Checkpoint::load(&path, &Device::flex()).map_err(raise)?;
            Ok(Self::new(&checkpoint))
        })
    }

    /// Writes a checkpoint, atomically. `ttac adapt` and all other commands take it.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        compute(py, || {
            let checkpoint = Checkpoint {
                header: self.header.clone(),
                network: self.inner.network.clone(),
            };
            checkpoint.save(&path).map_err(raise)
        })
    }

    /// Takes a network of PyTorch by `torch.export`.
    ///
    /// `example` is a batch of at least two inputs as the network takes them, float32 `[n, 3, height, width]` on the CPU;
    /// its values do not matter. The network is exported in eval mode and left as it was. With `check`, the scores of the
    /// example are compared with PyTorch's, and a difference above 1e-4 of the largest score is an error.
    #[staticmethod]
    #[pyo3(signature = (net, example, *, mean=None, std=None, normalise=None, classes=None, features=None, check=true))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn from_torch<'py>(
        net: &Bound<'py, PyAny>,
        example: &Bound<'py, PyAny>,
        mean: Option<[f32; 3]>,
        std: Option<[f32; 3]>,
        normalise: Option<&str>,
        classes: Option<Classes>,
        features: Option<String>,
        check: bool,
    ) -> PyResult<Bound<'py, Self>> {
        let py = net.py();
        let exporting = py.import("ttac._export")?;
        // It is removed when the context ends, also if something fails.
        let folder = py.import("tempfile")?.call_method0("TemporaryDirectory")?;
        let result = (|| {
            let path: PathBuf = exporting
                .call_method1("save", (net, example, folder.getattr("name")?))?
                .extract()?;
            let model = Self::from_export(py, path, mean, std, normalise, classes, features)?;
            let model = Bound::new(py, model)?;
            if check {
                exporting.call_method1("compare", (&model, net, example))?;
            }
            Ok(model)
        })();
        folder.call_method0("cleanup")?;
        result
    }

    /// Reads a network that `torch.export.save` wrote, or an ONNX file. Nothing in the file is executed.
    #[staticmethod]
    #[pyo3(signature = (path, *, mean=None, std=None, normalise=None, classes=None, features=None))]
    fn from_export(
        py: Python<'_>,
        path: PathBuf,
        mean: Option<[f32; 3]>,
        std: Option<[f32; 3]>,
        normalise: Option<&str>,
        classes: Option<Classes>,
        features: Option<String>,
    ) -> PyResult<Self> {
        let normalise = normalisation(normalise, mean, std)?;
        let graph = compute(py, || {
            import_graph(&path, features.as_deref(), &Device::flex()).map_err(raise)
        })?;
        let normalise = match normalise {
            Some(given) => given,
            None if graph.normalises_inside => ([0.0; 3], [1.0; 3]),
            None => return Err(unknown_normalisation()),
        };
        let classes = Classes::named(classes, graph.architecture.num_classes())?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut model = Self::imported(
            graph.architecture,
            graph.network,
            classes,
            normalise,
            name.into_owned(),
        )?;
        model.notes = graph.notes;
        Ok(model)
    }

    /// Puts weights into a known architecture: a `state_dict` of PyTorch tensors or of arrays.
    ///
    /// Keys may lie under any prefix. Every parameter has to be there with its shape, and nothing else, unless
    /// `allow_partial` is set. `ttac info architectures` lists the names.
    #[staticmethod]
    #[pyo3(signature = (state_dict, arch, *, mean=None, std=None, normalise=None, classes=None, allow_partial=false))]
    fn from_state_dict(
        state_dict: &Bound<'_, PyAny>,
        arch: &str,
        mean: Option<[f32; 3]>,
        std: Option<[f32; 3]>,
        normalise: Option<&str>,
        classes: Option<Classes>,
        allow_partial: bool,
    ) -> PyResult<Self> {
        let Some(normalise) = normalisation(normalise, mean, std)? else {
            return Err(unknown_normalisation());
        };
        let usual = match Architecture::by_name(arch, 1).map_err(raise)?.input() {
            InputForm::Images {
                size: [224, 224], ..
            } => 1000,
            _ => 10,
        };
        let count = match &classes {
            None => usual,
            Some(Classes::Count(count)) => *count,
            Some(Classes::Names(names)) => names.len(),
        };
        let architecture = Architecture::by_name(arch, count).map_err(raise)?;
        let found = tensors(state_dict)?;
        let classes = Classes::named(classes, count)?;
        let origin = Path::new("state_dict");
        let (network, _) = compute(state_dict.py(), || {
            import_tensors(origin, found, &architecture, allow_partial, &Device::flex())
                .map_err(raise)
        })?;
        Self::imported(
            architecture,
            network,
            classes,
            normalise,
            "state_dict".to_owned(),
        )
    }

    /// Answers a batch as the network is, without learning: uint8 images `[n, height, width, 3]`.
    fn predict(&self, images: &Bound<'_, PyAny>) -> PyResult<Answer> {
        let py = images.py();
        let batch = samples(&self.inner.input, images)?;
        let answer = compute(py, || self.predictor()?.predict(&batch).map_err(raise))?;
        Answer::new(py, answer)
    }

    /// Returns the scores of inputs that are normalised already: float32 `[n, 3, height, width]`, as PyTorch has them.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        inputs: PyReadonlyArray4<'py, f32>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let InputContract::Images { height, width, .. } = self.inner.input else {
            return Err(invalid(
                "`logits` takes images, and this network takes clouds of points",
            ));
        };
        let shape = inputs.shape().to_vec();
        if shape[0] == 0 || shape[1..] != [3, height, width] {
            return Err(invalid(format!(
                "`logits`: expected [n, 3, {height}, {width}] with at least one input, found {shape:?}"
            )));
        }
        let values = inputs.as_array().iter().copied().collect::<Vec<f32>>();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(invalid(
                "`logits`: expected finite inputs, found NaN or infinity",
            ));
        }
        let scores: Vec<f32> = compute(py, || {
            let inputs: Tensor<4> =
                Tensor::from_data(TensorData::new(values, shape), &Device::flex());
            let inputs = inputs.permute([0, 2, 3, 1]);
            let scores = self.inner.network.forward(inputs, NormMode::Running);
            Ok(scores.to_data().try_to_vec().expect("scores are f32"))
        })?;
        let classes = self.inner.classes.len();
        let samples = scores.len() / classes;
        scores.into_pyarray(py).reshape([samples, classes])
    }

    /// Returns the weights with the names of PyTorch's `state_dict`: tensors for `load_state_dict`, or arrays with `numpy`.
    #[pyo3(signature = (*, numpy=false))]
    fn state_dict<'py>(&self, py: Python<'py>, numpy: bool) -> PyResult<Bound<'py, PyAny>> {
        state_dict(py, &export_bytes(&self.inner.network), numpy)
    }

    /// The names of the classes, in the order of the scores.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.inner.classes.clone()
    }

    /// The name of the architecture.
    #[getter]
    fn architecture(&self) -> &str {
        &self.inner.architecture
    }

    /// Identifies the network and its weights. Anchors and saved sessions carry it.
    #[getter]
    fn fingerprint(&self) -> &str {
        &self.inner.fingerprint
    }

    /// Rows and columns of the images; `None` for a network of clouds.
    #[getter]
    fn image_size(&self) -> Option<(usize, usize)> {
        match self.inner.input {
            InputContract::Images { height, width, .. } => Some((height, width)),
            InputContract::Clouds { .. } => None,
        }
    }

    /// Mean and standard deviation that images are normalised by, per channel; `None` for a network of clouds.
    #[getter]
    fn normalisation(&self) -> Option<([f32; 3], [f32; 3])> {
        match self.inner.input {
            InputContract::Images { mean, std, .. } => Some((mean, std)),
            InputContract::Clouds { .. } => None,
        }
    }

    /// What the import had to say, in sentences.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn __repr__(&self) -> String {
        format!(
            "<ttac.Model {}, {} classes, {}, fingerprint {}>",
            self.inner.architecture,
            self.inner.classes.len(),
            self.inner.input.describe(),
            self.inner.fingerprint
        )
    }
}
