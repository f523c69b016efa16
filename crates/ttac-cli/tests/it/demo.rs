//! The demo, with few images.

use crate::World;

#[test]
fn the_demo_ends_with_a_table_a_page_and_what_to_do_next() {
    let world = World::new();
    let result = world.json("demo --images 384 --out d --json");
    let table = &result["table"];
    assert_eq!(table["columns"].as_array().unwrap().len(), 4);
    let rows = table["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    let mean = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        row["mean"].as_f64().unwrap()
    };
    assert!(mean("TTAC") < mean("TEST"), "{table}");
    let page = std::fs::read_to_string(world.path("d/report.html")).unwrap();
    for figure in ["cumulative-error", "confusion", "anchors", "cost", "tsne"] {
        assert!(page.contains(&format!("id=\"{figure}\"")), "{figure}");
    }
    assert!(!page.contains("http://") && !page.contains("src=\"http"));
    // Once more, over what is there.
    let text = world.stdout("demo --images 128 --out d");
    assert!(text.contains("ttac import"), "{text}");
}
