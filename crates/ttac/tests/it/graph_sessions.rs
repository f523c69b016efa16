//! Sessions on imported networks: every method runs, or says why it cannot; resets and saved states have the same bits.

use burn::tensor::Device;
use ttac::data::{Dataset, Images, InMemory, SHAPES10_CLASSES, Samples, Shapes10, Split};
use ttac::input::InputContract;
use ttac::method::{Setting, method_names};
use ttac::protocol::Protocol;
use ttac::stats::{AnchorConfig, SourceLabels, collect};
use ttac::{Error, Model, Result, Session, SourceStatistics};

use crate::fixture::note;
use crate::graphs::{graph_of, imported};
use crate::world::eager;

const BATCH: usize = 16;

/// Embedded images, each pixel made a square so that they have the size a network wants.
fn shapes(split: Split, count: usize, side: usize) -> InMemory {
    let ids: Vec<u64> = (0..count as u64).collect();
    let batch = Shapes10::new(split, count, 3).batch(&ids).unwrap();
    let Samples::Images(small) = batch.samples else {
        panic!("they are images");
    };
    let factor = side / small.width;
    let mut pixels = Vec::with_capacity(count * side * side * 3);
    for image in 0..count {
        for (row, column) in (0..side * side).map(|at| (at / side, at % side)) {
            let at = (image * small.height + row / factor) * small.width + column / factor;
            pixels.extend(&small.pixels[3 * at..3 * at + 3]);
        }
    }
    let images = Images {
        height: side,
        width: side,
        pixels,
    };
    InMemory::new("shapes", SHAPES10_CLASSES, images, batch.labels).unwrap()
}

/// An imported network with its anchors, and two batches that arrive.
struct World {
    model: Model,
    anchors: SourceStatistics,
    batches: [Samples; 2],
}

impl World {
    fn of(name: &str) -> Option<Self> {
        let found = imported(name)?;
        let [side, _] = graph_of(&found.architecture).image_size();
        let source = shapes(Split::Train, 100, side);
        let input = InputContract::measured(&source, 100).unwrap();
        let classes = SHAPES10_CLASSES.map(str::to_owned).to_vec();
        let model = Model::new("graph", found.network, input, classes);
        let config = AnchorConfig {
            labels: SourceLabels::True,
            alignment_batch: 40,
            ..AnchorConfig::default()
        };
        let anchors = collect(
            &model.network,
            &model.fingerprint,
            &model.input,
            &source,
            &config,
            &Device::flex(),
            |_| {},
        );
        let arriving = shapes(Split::Test, 2 * BATCH, side);
        let batch = |first: usize| {
            let ids: Vec<u64> = (first as u64..).take(BATCH).collect();
            arriving.batch(&ids).unwrap().samples
        };
        Some(Self {
            model,
            anchors: anchors.unwrap(),
            batches: [batch(0), batch(BATCH)],
        })
    }

    fn session(&self, method: &str) -> Result<Session> {
        let protocol = Protocol {
            minibatch: BATCH,
            ..Protocol::default()
        };
        Session::builder(&self.model)
            .anchors(&self.anchors)
            .method_spec(&eager(method, Setting::NoQueue))
            .protocol(&protocol)
            .build()
    }
}

/// What a method lacks in a network, in the words of the refusal.
fn lacks(network: &str, method: &str) -> Option<&'static str> {
    match (network, method) {
        (_, "ttt-r") => Some("rotation"),
        (_, "ttt++" | "ttac+contrastive") => Some("projection"),
        ("vit_timm" | "resnet_gn" | "squeeze_like", "bn" | "tribe") => Some("batch norms"),
        (
            "squeeze_like",
            "rotta" | "petta" | "note" | "tent" | "rpl" | "eta" | "eata" | "rdumb" | "sar" | "deyo"
            | "poem" | "roid" | "cmf",
        ) => Some("norms"),
        (
            "squeeze_like",
            "t3a" | "ttac-source-free" | "ttac-source-free+shot" | "ttac++-source-free",
        ) => Some("linear classifier"),
        _ => None,
    }
}

/// Classes and probabilities, to the bit.
fn bits(answer: &ttac::Answer) -> (Vec<usize>, Vec<u32>) {
    let probabilities = answer.probabilities.iter().map(|p| p.to_bits());
    (answer.classes.clone(), probabilities.collect())
}

/// Runs a method over two batches, resets it and runs it again, and goes on from a saved state.
fn goes_on(world: &World, mut session: Session, path: &std::path::Path, what: &str) {
    let both = |session: &mut Session| {
        let mut answers = Vec::new();
        for (number, samples) in world.batches.iter().enumerate() {
            answers.push(bits(&session.observe(samples).unwrap()));
            if number == 0 {
                session.save(path).unwrap();
            }
        }
        answers
    };
    let first = both(&mut session);
    let finite = |bits: &u32| f32::from_bits(*bits).is_finite();
    assert!(
        first.iter().all(|(_, bits)| bits.iter().all(finite)),
        "{what}"
    );
    session.reset();
    assert_eq!(both(&mut session), first, "{what}: after a reset");
    let mut loaded = Session::load(path, &world.model, Some(&world.anchors)).unwrap();
    let second = bits(&loaded.observe(&world.batches[1]).unwrap());
    assert_eq!(second, first[1], "{what}: after loading");
}

#[test]
fn every_method_runs_on_an_imported_network_or_says_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    for network in ["mobilenet_v2", "vit_timm", "squeeze_like", "resnet_gn"] {
        let Some(world) = World::of(network) else {
            return;
        };
        let mut ran = Vec::new();
        for (method, _) in method_names() {
            match (world.session(method), lacks(network, method)) {
                (Ok(session), None) => {
                    let what = format!("{method} on {network}");
                    goes_on(&world, session, &folder.path().join("state"), &what);
                    ran.push(method);
                }
                (Err(error @ (Error::NoLayers { .. } | Error::NoHead { .. })), Some(words)) => {
                    assert!(error.to_string().contains(words), "{error}");
                }
                (Ok(_), Some(words)) => panic!("{method} runs on {network} without {words}"),
                (Err(error), _) => panic!("{method} on {network}: {error}"),
            }
        }
        note(&format!("{network:16}{}", ran.join(", ")));
    }
}
