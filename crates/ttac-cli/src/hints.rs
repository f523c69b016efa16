//! What to type after an error of the library, which knows nothing of commands and their options.

use ttac::archive::Kind;
use ttac::backbone::OtherSizes;
use ttac::checkpoint::Advice;
use ttac::method::{Head, Layers};
use ttac::{Error, Remedy};

use crate::command::fetch;

/// Returns the command or option that helps against an error, if there is one.
pub fn hint(error: &Error) -> Option<String> {
    if let Some(remedy) = error.remedy() {
        return Some(match error {
            Error::Data { data, .. } => of_data(data, remedy),
            _ => of_remedy(remedy),
        });
    }
    let hint = match error {
        Error::Weights { report, .. } => return report.advice().as_ref().map(for_weights),
        Error::Invalid {
            what: "results", ..
        } => {
            "`ttac bench CONFIG` writes cells into a folder, and `ttac adapt --out FILE` single records"
        }
        Error::Format {
            expected: "a cell of a grid or a record of a run",
            ..
        } => {
            "run the same `ttac bench` or `ttac adapt` again: cells that are half \
             written or of another version have to be made again"
        }
        Error::Format {
            expected, problem, ..
        } if *expected == Kind::Anchors.description() && problem.starts_with("header version") => {
            "make the anchors again with `ttac anchors`"
        }
        Error::Invalid {
            what: "source classes",
            problem,
        } if problem.contains("take classes from the labels") => {
            "`--labels true` takes classes from the labels"
        }
        Error::Invalid {
            what: "objective",
            problem,
        } if problem.contains("projection head") => {
            "`--set projection=128` adds a projection head to architectures that can have one"
        }
        Error::NoAnchors { .. } => {
            "make anchors of the source data with `ttac anchors`, and give them by `--anchors FILE`; \
             `--method ttac-source-free`, `shot` or `tent` go without"
        }
        Error::NoHead { head, .. } => match head {
            Head::Projection => "`ttac train --objective simclr` trains a network with one",
            Head::Rotation => "`ttac train --objective rotation` trains a network with one",
        },
        Error::NoLayers { layers, .. } => match layers {
            Layers::LinearClassifier => {
                "`tent`, `shot` and `ttac` with anchors do without; `ttac import --features NODE` takes the features elsewhere"
            }
            Layers::BatchNorms => {
                "`tent` and `ttac` adapt norms of other kinds; an exporter that folds batch norms into convolutions loses them"
            }
            Layers::Norms => "`shot` and `ttac` adapt all weights",
        },
        Error::NoAlignment { .. } => {
            "make the anchors of more samples, or with a smaller `--alignment-batch`"
        }
        Error::Stopped { .. } => {
            "`--guard warn` goes on in spite of it, `--guard reset` goes back to the source; compare with \
             `--method test`, which does not adapt"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Says how the files of a data set are brought or mended.
fn of_data(data: &str, remedy: Remedy) -> String {
    match remedy {
        Remedy::BringData if fetch::knows(data) => {
            format!("`ttac fetch {data}` brings it, `--root DIR` says where it already lies")
        }
        Remedy::BringData => {
            "`--root DIR` says where it lies; `ttac fetch` cannot bring it".to_owned()
        }
        Remedy::BringDataAgain if fetch::knows(data) => format!(
            "the file is damaged or of another data set: remove it and run `ttac fetch {data}`"
        ),
        Remedy::BringDataAgain => "the file is damaged or of another data set".to_owned(),
        _ => of_remedy(remedy),
    }
}

fn of_remedy(remedy: Remedy) -> String {
    match remedy {
        Remedy::LeaveOutUnreadable => {
            "mend or remove the file, or leave such files out with `--skip-bad`".to_owned()
        }
        Remedy::ClassFolders => {
            "`--root DIR` names the folder that holds a folder for every class; only `ttac adapt` takes \
             pictures without classes"
                .to_owned()
        }
        Remedy::FrostPhotographs => {
            "`--frost-textures DIR` or `$TTAC_FROST` says where they lie, `ttac fetch frost` brings them; \
             or ask for `frost-like`"
                .to_owned()
        }
        Remedy::ImportWeights => "weights of other programs come in by `ttac import`".to_owned(),
        other => other.to_string(),
    }
}

/// Puts advice on weights that do not fit into terms of arguments.
fn for_weights(advice: &Advice) -> String {
    match advice {
        Advice::OtherSizes(OtherSizes { fields, untold }) => {
            let fields = fields
                .iter()
                .map(|(field, value)| format!("--set {field}={value}"));
            let fields = fields.collect::<Vec<_>>().join(" ");
            let untold = untold.iter().map(|field| {
                format!("; the number of `{field}`, which no shape tells, has to be set too")
            });
            let untold: String = untold.collect();
            format!("the file holds a network of other sizes: say so with `{fields}`{untold}")
        }
        Advice::OtherClasses(count) => {
            format!("the file's classifier has {count} classes: say so with `--classes {count}`")
        }
        Advice::NoClassifier => {
            "the file has no classifier: `--allow-partial` loads the rest and leaves the \
             classifier at its initial values"
                .to_owned()
        }
        Advice::NoHead => {
            "only the self-supervised head is missing: build the network without it with \
             `--set projection=null` or `--set rotation=null`"
                .to_owned()
        }
        Advice::Unclear => {
            "check the architecture and its `--set` fields; `--allow-partial` loads what fits and \
             leaves the rest at its initial values"
                .to_owned()
        }
        general => general.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn hints_name_commands_for_errors_of_the_library() {
        let folder = tempfile::tempdir().unwrap();
        let nothing = ttac::report::load(&[folder.path().to_owned()]).unwrap_err();
        assert!(hint(&nothing).unwrap().contains("`ttac bench CONFIG`"));

        std::fs::write(folder.path().join("cell.json"), "{").unwrap();
        let half = ttac::report::load(&[folder.path().to_owned()]).unwrap_err();
        assert!(hint(&half).unwrap().contains("the same `ttac bench`"));
        for error in [nothing, half] {
            let words = format!("{error} {}", error.hint().unwrap_or_default());
            assert!(
                !words.contains("`ttac ") && !words.contains("--"),
                "{words}"
            );
        }
    }

    #[test]
    fn sizes_become_arguments() {
        let sizes = |fields: &[(&'static str, usize)], untold: &[&'static str]| {
            for_weights(&Advice::OtherSizes(OtherSizes {
                fields: fields.to_vec(),
                untold: untold.to_vec(),
            }))
        };
        assert_eq!(
            sizes(&[("patch", 16), ("image_size", 224)], &[]),
            "the file holds a network of other sizes: say so with `--set patch=16 --set image_size=224`"
        );
        assert_eq!(
            sizes(&[("width", 48)], &["heads"]),
            "the file holds a network of other sizes: say so with `--set width=48`; the number of `heads`, \
             which no shape tells, has to be set too"
        );
    }

    #[test]
    fn every_other_advice_names_its_argument() {
        let classes = for_weights(&Advice::OtherClasses(7));
        assert!(classes.ends_with("has 7 classes: say so with `--classes 7`"));
        for (advice, argument) in [
            (Advice::NoClassifier, "`--allow-partial`"),
            (Advice::NoHead, "`--set projection=null`"),
            (Advice::Unclear, "`--allow-partial`"),
        ] {
            assert!(for_weights(&advice).contains(argument), "{advice:?}");
        }
        assert_eq!(for_weights(&Advice::Damaged), Advice::Damaged.to_string());
    }

    #[test]
    fn advice_names_the_command_that_helps() {
        let absent = |data: &str| {
            let error = Error::Data {
                data: data.to_owned(),
                path: PathBuf::from("x"),
                problem: "no such folder".to_owned(),
                remedy: Some(Remedy::BringData),
            };
            hint(&error).unwrap()
        };
        assert!(absent("mnist").starts_with("`ttac fetch mnist` brings it"));
        assert!(absent("modelnet40").ends_with("`ttac fetch` cannot bring it"));
        let foreign = Error::Foreign {
            path: PathBuf::from("x"),
            problem: "a poem".to_owned(),
        };
        assert_eq!(
            hint(&foreign).unwrap(),
            "weights of other programs come in by `ttac import`"
        );
    }
}
