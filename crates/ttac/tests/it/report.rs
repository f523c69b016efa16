use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use ttac::experiment::Card;
use ttac::method::Learned;
use ttac::protocol::{FeatureRecord, Recorder, RunRecord, Sink, StepRecord};
use ttac::report::{CellRecord, Format, RowSource, SignificanceTest, Table, html, load};

const SAMPLES: usize = 40;

/// A card of a method on CIFAR-10 under a corruption.
fn card(method: &str, corruption: &str, seed: u64) -> Card {
    serde_json::from_value(json!({
        "method": method,
        "preset": "recommended",
        "constants": { "method": "test" },
        "family": "N-O",
        "protocol": { "seed": seed },
        "architecture": "resnet20-cifar",
        "model": "0123456789abcdef",
        "source_objective": "plain",
        "stream": {
            "domains": { "kind": "one", "domain": { "data": "cifar10", "corruption": corruption, "severity": 5 } },
            "order": { "kind": "shuffled" },
            "batch-size": 10,
            "seed": seed,
        },
        "corruptions": [format!("{corruption} 5")],
        "plan": format!("{corruption} {seed}"),
        "oracle": false,
        "skipped": 0,
        "program": "ttac 0.0.0",
    }))
    .unwrap()
}

/// A run of two classes in four batches, whose first `wrong` predictions are wrong.
fn record(method: &str, corruption: &str, seed: u64, wrong: usize) -> RunRecord {
    let mut recorder = Recorder::new(&["cat".to_owned(), "<dog>".to_owned()]);
    for batch in 0..4 {
        let labels: Vec<usize> = (0..10).map(|i| i % 2).collect();
        let predicted = labels.iter().enumerate().map(|(i, label)| {
            let is_wrong = batch * 10 + i < wrong;
            if is_wrong { 1 - label } else { *label }
        });
        let learns = method == "ttac";
        let step = StepRecord {
            batch,
            visit: 0,
            arrivals: Vec::new(),
            predicted: predicted.collect(),
            confidence: vec![0.9; 10],
            labels: Some(labels),
            learned: Learned {
                accepted: if learns { 5 + batch } else { 0 },
                considered: if learns { 10 } else { 0 },
                anchor_distance: learns.then(|| 2.0 / (batch + 1) as f64),
                ..Learned::nothing()
            },
            learning_seconds: 0.1,
            predicting_seconds: 0.02,
            late: false,
            gate: None,
            warnings: Vec::new(),
            stopped: None,
        };
        let _ = recorder.step(&step).unwrap();
    }
    recorder.finish(card(method, corruption, seed)).unwrap()
}

fn cell(row: &str, method: &str, corruption: &str, seed: u64, wrong: usize) -> CellRecord {
    let axes = [
        ("corruption", corruption.to_owned()),
        ("seed", seed.to_string()),
    ];
    CellRecord {
        row: row.to_owned(),
        axes: BTreeMap::from(axes.map(|(name, value)| (name.to_owned(), value))),
        command: vec!["--method".to_owned(), method.to_owned()],
        record: record(method, corruption, seed, wrong),
        features: None,
    }
}

/// Two methods in five settings; the second is better everywhere.
fn grid() -> Vec<CellRecord> {
    let corruptions = ["snow", "fog", "frost", "contrast", "gaussian_noise"];
    let mut cells = Vec::new();
    for (index, corruption) in corruptions.into_iter().enumerate() {
        cells.push(cell("TEST", "test", corruption, 0, 20 + index));
        cells.push(cell("TTAC", "ttac", corruption, 0, 10));
    }
    cells
}

fn features() -> FeatureRecord {
    let values = |turn: f32| (0..SAMPLES * 3).map(|i| (turn * i as f32).sin()).collect();
    FeatureRecord {
        labels: (0..SAMPLES).map(|i| i % 2).collect(),
        dimension: 3,
        before: values(1.0),
        after: values(2.0),
    }
}

fn figures(page: &str) -> Vec<&str> {
    let parts = page.split("<figure data-figure=\"").skip(1);
    parts.map(|part| part.split('"').next().unwrap()).collect()
}

#[test]
fn the_page_has_every_figure_and_needs_no_network() {
    let mut cells = grid();
    cells[1].features = Some(features());
    let table = Table::new(&cells).unwrap().with_published(&cells);
    let page = html::page("A <title>", &cells, &table);
    assert_eq!(
        figures(&page),
        [
            "cumulative-error",
            "cumulative-error-by-setting",
            "bars",
            "confusion",
            "anchors",
            "accepted",
            "cost",
            "tsne"
        ]
    );
    for word in [
        "http:", "https:", "src=", "@import", "url(", "<script", "//",
    ] {
        assert!(!page.contains(word), "`{word}`");
    }
    assert!(page.contains("<title>A &lt;title&gt;</title>"));
    assert!(page.contains("&lt;dog&gt; taken for cat"));
    assert!(!page.contains("<dog>"), "names are text");
    assert!(!page.contains("class=\"absent\""));
    assert!(page.contains("after: TTAC") && !page.contains("after: TEST"));
    // Every image has a name and a description.
    let images = page.matches("role=\"img\" aria-label=\"").count();
    assert_eq!(page.matches("<desc>").count(), images);
    assert!(images >= 15, "{images}");
    assert_eq!(
        page,
        html::page("A <title>", &cells, &table),
        "the same every time"
    );
}

#[test]
fn numbers_of_the_page_are_those_of_the_records() {
    let cells = grid();
    let table = Table::new(&cells).unwrap();
    // In the usual order of the corruptions.
    assert_eq!(
        table.columns,
        ["gaussian_noise", "snow", "frost", "fog", "contrast"]
    );
    let page = html::page("t", &cells, &table);
    let settings = page
        .split("aria-label=\"Errors by setting\"")
        .nth(1)
        .unwrap();
    let row = settings.split("<th scope=\"row\">TEST").nth(1).unwrap();
    let row = row.split("</tr>").next().unwrap();
    let values: Vec<&str> = row
        .split("<td>")
        .skip(1)
        .map(|part| part.split('<').next().unwrap())
        .collect();
    // 24, 20, 22, 21 and 23 of 40 wrong.
    let expected = ["60.00", "50.00", "55.00", "52.50", "57.50", "55.00"];
    assert_eq!(values[..6], expected);
    for cell in &cells {
        let error = format!("{:.2}", cell.record.error_percent);
        assert!(page.contains(&error), "{error}");
    }
    assert!(
        page.contains(
            "<strong>TTAC</strong> has the lowest mean error, 25.00 %, 30.00 points below TEST"
        ),
        "the sentence at the top"
    );
}

#[test]
fn figures_without_data_say_what_would_bring_them() {
    let mut cells = grid();
    cells.retain(|cell| cell.row == "TEST");
    let table = Table::new(&cells).unwrap();
    let page = html::page("t", &cells, &table);
    assert_eq!(page.matches("class=\"absent\"").count(), 3);
    assert!(page.contains("a run or a grid with the option <code>features</code>"));
    assert!(page.contains("methods of the family of <code>ttac</code> keep them"));
    assert!(page.contains("No method here chooses pseudo-labels"));
    assert!(!figures(&page).contains(&"tsne"));
}

/// The first predictions are wrong, of both classes in turn: of 21 the first class has one more.
#[test]
fn errors_by_class_are_over_all_settings() {
    let cells = [
        cell("TEST", "test", "snow", 0, 21),
        cell("TEST", "test", "fog", 0, 11),
        cell("TTAC", "ttac", "snow", 0, 10),
        cell("TTAC", "ttac", "fog", 0, 10),
    ];
    let table = Table::by_class(&cells).unwrap();
    assert_eq!(table.columns, ["cat", "<dog>"]);
    let errors = |row: usize| -> Vec<f64> {
        let cells = table.rows[row].cells.iter();
        cells.map(|cell| cell.unwrap().mean).collect()
    };
    assert_eq!(table.rows[0].name, "TEST");
    assert_eq!(errors(0), [100.0 * 17.0 / 40.0, 100.0 * 15.0 / 40.0]);
    assert_eq!(table.rows[0].mean, Some(40.0));
    assert_eq!(errors(1), [25.0, 25.0]);
    assert!(table.rows.iter().all(|row| row.against.is_none()));

    let mut strange = cells.to_vec();
    strange[3].record.confusion = vec![vec![1]];
    let error = Table::by_class(&strange).unwrap_err().to_string();
    assert!(error.contains("classes of row `TTAC`"), "{error}");
}

#[test]
fn the_best_competitor_is_named_with_a_p_value() {
    let cells = grid();
    let table = Table::new(&cells).unwrap();
    let against = table.rows[1].against.clone().unwrap();
    assert_eq!(against.competitor, "TEST");
    assert_eq!((against.pairs, against.difference), (5, -30.0));
    let found = against.significance.unwrap();
    // Five pairs that agree: 2 / 2^5.
    assert_eq!(
        (found.test, found.p),
        (SignificanceTest::SignedRank, 0.0625)
    );
    let markdown = table.render(Format::Markdown);
    assert!(
        markdown.contains("| 25.00 | TEST | -30.00 | 0.062 |"),
        "{markdown}"
    );
    assert!(markdown.contains("exact Wilcoxon signed-rank test"));
    // Four pairs are too few.
    let table = Table::new(&cells[..8]).unwrap();
    let against = table.rows[1].against.clone().unwrap();
    assert_eq!((against.pairs, against.significance), (4, None));
}

#[test]
fn a_single_pair_is_compared_image_by_image() {
    let mut cells = grid();
    cells.truncate(2);
    let table = Table::new(&cells).unwrap();
    let found = table.rows[1].against.clone().unwrap().significance.unwrap();
    // Ten images that only TTAC got right, none that only TEST did: 2 / 2^10.
    assert_eq!(found.test, SignificanceTest::Mcnemar);
    assert!((found.p - 2.0 / 1024.0).abs() < 1e-15);
    // Other images, or records that do not say: no test.
    cells[1].record.card.plan = "another".to_owned();
    let table = Table::new(&cells).unwrap();
    assert_eq!(table.rows[1].against.clone().unwrap().significance, None);
}

#[test]
fn published_rows_are_marked_and_never_win() {
    let cells = grid();
    let table = Table::new(&cells).unwrap().with_published(&cells);
    let published: Vec<_> = table
        .rows
        .iter()
        .filter(|row| row.source == RowSource::Published)
        .collect();
    let names: Vec<&str> = published.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(
        names,
        ["TEST (paper)", "TTAC (paper)", "TTAC w/o queue (paper)"]
    );
    // Five of fifteen corruptions have no printed mean; snow is the second column.
    assert_eq!(published[1].mean, None);
    assert_eq!(published[1].cells[1].unwrap().mean, 10.01);
    assert_eq!(published[2].cells[1].unwrap().mean, 11.91);
    assert_eq!(published[2].cells[0], None);
    assert!(published[1].protocol.contains(
        "ResNet-50, another backbone than our resnet20-cifar; 10000 images, unlike our 40"
    ));
    assert!(
        published[1]
            .protocol
            .contains("queue 4096, 4 epochs (unlike ours)")
    );
    assert_eq!(table.best().unwrap().name, "TTAC");
    // Other data have no printed rows.
    let mut shapes = cells;
    for cell in &mut shapes {
        let text = serde_json::to_string(&cell.record.card).unwrap();
        cell.record.card = serde_json::from_str(&text.replace("cifar10\"", "shapes10\"")).unwrap();
    }
    let table = Table::new(&shapes).unwrap();
    assert_eq!(table.clone().with_published(&shapes), table);
}

#[test]
fn records_say_which_images_were_right() {
    let record = record("ttac", "snow", 0, 11);
    let right = record.right().unwrap();
    assert_eq!(right.len(), SAMPLES);
    assert_eq!(right.iter().filter(|right| !**right).count(), 11);
    assert!(!right[10] && right[11]);
    assert_eq!(record.classes, ["cat", "<dog>"]);
    assert_eq!(record.curve[3].anchor_distance, Some(0.5));
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<RunRecord>(&text).unwrap(), record);
    // Records of before know less and are still records.
    let mut old = serde_json::to_value(&record).unwrap();
    let fields = old.as_object_mut().unwrap();
    fields.remove("outcomes");
    fields.remove("classes");
    let old: RunRecord = serde_json::from_value(old).unwrap();
    assert_eq!(old.right(), None);
    assert_eq!(old.classes.len(), 0);
}

fn write(folder: &Path, name: &str, value: &impl serde::Serialize) {
    let text = serde_json::to_string(value).unwrap();
    std::fs::write(folder.join(name), text).unwrap();
}

#[test]
fn folders_hold_cells_records_and_features() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let empty = load(&[path.to_owned()]).unwrap_err().to_string();
    let expected = format!(
        "invalid results: no cells of a grid and no records of runs in `{}`",
        path.display()
    );
    assert_eq!(empty, expected);
    // A record of `ttac adapt --out` becomes a cell of its method and corruption.
    write(path, "a.json", &record("ttac", "snow", 3, 4));
    features()
        .save(&FeatureRecord::path_beside(&path.join("a.json")))
        .unwrap();
    write(path, "b.json", &cell("TEST", "test", "fog", 0, 9));
    let cells = load(&[path.to_owned()]).unwrap();
    assert_eq!(cells[0].row, "ttac");
    assert_eq!(cells[0].axes["corruption"], "snow");
    assert_eq!(cells[0].axes["seed"], "3");
    assert_eq!(cells[0].features, Some(features()));
    assert_eq!((cells[1].row.as_str(), &cells[1].features), ("TEST", &None));
    // Half a cell, and half a feature file.
    let text = std::fs::read_to_string(path.join("b.json")).unwrap();
    std::fs::write(path.join("b.json"), &text[..text.len() / 2]).unwrap();
    let error = load(&[path.to_owned()]).unwrap_err();
    assert!(error.to_string().contains("b.json"), "{error}");
    assert!(error.hint().unwrap().contains("made again"));
    std::fs::remove_file(path.join("b.json")).unwrap();
    let file = path.join("a.features.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 5]).unwrap();
    let error = load(&[path.to_owned()]).unwrap_err().to_string();
    assert!(error.contains("not a ttac feature file"), "{error}");
}
