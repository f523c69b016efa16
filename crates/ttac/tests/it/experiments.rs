//! Specifications, grids and cards: the same experiment again, with the same bits.

use std::path::Path;

use burn::tensor::Device;
use serde_json::json;
use ttac::backbone::{Adaptable, NormMode};
use ttac::experiment::{Card, Experiment, Grid, Spec};
use ttac::loss::entropy;
use ttac::method::{
    Adapter, Learned, Learner, LearnerConfig, Method, MethodSpec, Minibatch, Needs, Preset, Stage,
};
use ttac::protocol::{Recorder, Reset, RunRecord, Stream, run};
use ttac::report::{CellRecord, Format, Table};
use ttac::{Result, Session};

use crate::world::{Source, data, plan};

fn shipped(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../assets/shapes10")
        .join(name)
}

fn spec() -> Spec {
    Spec {
        anchors: Some(shipped("anchors.safetensors")),
        corruption: Some("contrast".to_owned()),
        severity: Some(5),
        no_queue: true,
        subset: Some(120),
        batch_size: 40,
        seed: 3,
        set: [("loss_scale".to_owned(), json!(0.02))].into(),
        ..Spec::new(shipped("model.safetensors"), "shapes10")
    }
}

fn record(spec: &Spec) -> RunRecord {
    let experiment = Experiment::open(spec, &Device::flex()).unwrap();
    let mut session = experiment.session().unwrap();
    let mut recorder = Recorder::new(&experiment.classes());
    run(&mut session, &experiment.stream(), &mut recorder).unwrap();
    recorder.finish(experiment.card.clone()).unwrap()
}

#[test]
fn a_card_reads_back_as_a_specification_that_runs_the_same_experiment() {
    let first = record(&spec());
    let text = serde_json::to_string(&first.card).unwrap();
    let card: Card = serde_json::from_str(&text).unwrap();
    assert_eq!(card, first.card);
    let again = record(card.spec.as_ref().unwrap());
    assert_eq!(again.predictions, first.predictions);
    assert_eq!(again.curve, first.curve, "losses to the bit");
    assert_eq!(again.card, first.card);
    assert_eq!(first.card.changes(), ["loss_scale=0.02"]);
}

#[test]
fn a_specification_is_the_same_in_toml_and_json() {
    let spec = spec();
    let toml = toml::to_string(&spec).unwrap();
    assert_eq!(toml::from_str::<Spec>(&toml).unwrap(), spec, "{toml}");
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<Spec>(&json).unwrap(), spec);
    let short: Spec = toml::from_str("order = \"correlated:0.5\"\nguard = \"stop\"").unwrap();
    let long = toml::from_str::<Spec>(&toml::to_string(&short).unwrap()).unwrap();
    assert_eq!(long, short);
    assert_eq!(short.order, "correlated:0.5".parse().unwrap());
}

#[test]
fn a_grid_has_a_cell_for_every_combination_and_names_all_mistakes() {
    let grid = r#"
        [grid]
        model = "m"
        data = "shapes10"
        severity = 5
        corruption = ["snow", "fog"]
        seed = [0, 1, 2]
        [[row]]
        method = "test"
        [[row]]
        name = "TENT"
        method = "tent"
        set = { learning_rate = 0.01 }
    "#;
    let cells = Grid::parse(grid).unwrap().cells;
    assert_eq!(cells.len(), 12);
    assert_eq!(cells[0].title(), "test snow 0");
    assert_eq!(cells[11].title(), "TENT fog 2");
    let tent = cells[11].spec.method_spec().unwrap();
    assert_eq!(tent.settings["learning_rate"], 0.01);
    let wrong = grid
        .replace("severity = 5", "severety = 5")
        .replace("set = {", "sets = {");
    let error = Grid::parse(&wrong).unwrap_err().to_string();
    for expected in [
        "did you mean `severity`?",
        "did you mean `set`?",
        "row `TENT`",
    ] {
        assert!(error.contains(expected), "{expected} in: {error}");
    }
    let error = Grid::parse(&grid.replace("severity = 5", "severity = \"five\""));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("row `test`"), "{error}");
}

/// TENT, as somebody who does not know ours would write it.
#[derive(Clone)]
struct Mine;

impl Method for Mine {
    fn learn(&mut self, learner: &mut Learner, batch: &Minibatch, _: &Stage) -> Result<Learned> {
        let images = burn::tensor::Tensor::from_inner(batch.images.clone());
        let loss = entropy(learner.network().forward(images, NormMode::Batch));
        learner.step(&loss);
        Ok(Learned::one_step(Vec::new()))
    }

    fn boxed_clone(&self) -> Box<dyn Method> {
        Box::new(self.clone())
    }
}

#[test]
fn records_of_an_own_method_backbone_and_data_set_appear_in_tables() {
    let source = Source::of("mine");
    let (plan, domains) = (plan(3), data(0));
    let stream = Stream::new(&plan, &domains).unwrap();
    let finish = |mut session: Session| {
        let card = Card::new(&session, None, &plan, &domains).unwrap();
        let mut recorder = Recorder::new(&domains[0].info().classes);
        run(&mut session, &stream, &mut recorder).unwrap();
        let record = recorder.finish(card).unwrap();
        // Through a file, as records come.
        let text = serde_json::to_string(&record).unwrap();
        CellRecord::from(serde_json::from_str::<RunRecord>(&text).unwrap())
    };
    let learner = LearnerConfig {
        adapts: Adaptable::Affine,
        learning_rate: 1e-3,
        predicts: NormMode::Batch,
        ..LearnerConfig::default()
    };
    let network = source.model.network.clone();
    let adapter = Adapter::new(network, learner, Box::new(Mine), Needs::NETWORK);
    let named = MethodSpec::of("mine", &json!({ "learning_rate": 1e-3 }));
    let own = Session::builder(&source.model).own_method(named, adapter);
    let cells = [
        finish(own.build().unwrap()),
        finish(
            Session::builder(&source.model)
                .preset("test", Preset::Released)
                .build()
                .unwrap(),
        ),
    ];
    let table = Table::new(&cells).unwrap().render(Format::Markdown);
    assert!(table.contains("| mine ["), "{table}");
    assert!(
        table.contains("mine (recommended), N-O, no queue"),
        "{table}"
    );
    assert!(table.contains("resnet20-cifar"), "{table}");
}

/// A list of corruptions may be mixed, rise and fall, or come again; each is read, planned and run.
#[test]
fn streams_of_several_corruptions_run_by_their_words() {
    for (corruption, visits, domains) in [
        ("mixed:fog,contrast", 1, 2),
        ("gradual:contrast", 9, 5),
        ("fog,clean*2", 4, 2),
    ] {
        let spec = Spec {
            corruption: Some(corruption.to_owned()),
            severity: Some(5),
            method: "bn".to_owned(),
            set: std::collections::BTreeMap::new(),
            subset: Some(24),
            ..spec()
        };
        let opened = Experiment::open(&spec, &Device::flex()).unwrap();
        assert_eq!(opened.plan.visits.len(), visits, "{corruption}");
        assert_eq!(opened.domains.len(), domains, "{corruption}");
        let record = record(&spec);
        assert_eq!(record.card.stream, opened.plan.config, "{corruption}");
    }
}

#[test]
fn a_stream_by_name_stands_in_for_the_keys_of_a_grid_that_are_not_there() {
    let cells = |text: &str| Grid::parse(text).map(|grid| grid.cells);
    let rest = "model = 'm'\ndata = 'cifar10'\nmethod = 'tent'\n";
    let named = format!("[grid]\nstream = ['practical', 'note']\nbatch-size = 16\n{rest}");
    let named = cells(&named).unwrap();
    assert_eq!(named[0].axes["stream"], "practical");
    let written = format!(
        "[grid]\ncorruption = 'practical'\nseverity = 5\norder = 'correlated:0.1'\nbatch-size = 16\n{rest}"
    );
    assert_eq!(named[0].spec, cells(&written).unwrap()[0].spec);
    assert_eq!(named[1].spec.reset, Reset::PerVisit);
    let unknown = cells(&format!("[grid]\nstream = 'practicle'\n{rest}"));
    let error = unknown.unwrap_err().to_string();
    assert!(error.contains("did you mean `practical`?"), "{error}");
}
