//! Tables in the documents are what the command prints.

use std::path::Path;

use assert_cmd::Command;

/// What `ttac report` prints, called in the root of the repository.
fn report(root: &Path, arguments: &[&str]) -> String {
    let mut command = Command::cargo_bin("ttac").unwrap();
    let output = command.current_dir(root).arg("report").args(arguments);
    let output = output.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Panics unless a document has what the command prints.
fn check(root: &Path, document: &str, arguments: &[&str]) {
    let text = std::fs::read_to_string(root.join(document)).unwrap();
    let printed = report(root, arguments);
    assert!(
        text.contains(printed.trim()),
        "{document} lacks what `ttac report {}` prints:\n{printed}",
        arguments.join(" ")
    );
}

#[test]
fn tables_in_the_documents_are_what_the_command_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = 0;
    for folder in std::fs::read_dir(root.join("results")).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        let folder = format!("results/{name}");
        let Ok(mut files) = std::fs::read_dir(root.join(&folder)) else {
            continue;
        };
        let is_cell = |path: &Path| path.extension().is_some_and(|kind| kind == "json");
        if files.any(|file| is_cell(&file.unwrap().path())) {
            check(&root, &format!("{folder}/README.md"), &[&folder]);
            found += 1;
        }
    }
    assert!(found > 10, "{found} tables");
    let records = "results/cifar10-c/records";
    check(&root, "results/cifar10-c/README.md", &[records]);
    check(&root, "README.md", &[records, "--means"]);
}
