//! The corruptions of a stream, as a specification names them: a list, whose domains are visited one after the other, all at once,
//! rising and falling, or in pieces.

use ttac_corrupt::Corruption;

use crate::stream::{Domain, Domains};
use crate::{Error, Result};

/// Stands for no corruption in a list of them.
const CLEAN: &str = "clean";

/// The fifteen corruptions in the order of the practical stream (Yuan et al., 2023).
const PRACTICAL: [Corruption; 15] = [
    Corruption::MotionBlur,
    Corruption::Snow,
    Corruption::Fog,
    Corruption::ShotNoise,
    Corruption::DefocusBlur,
    Corruption::Contrast,
    Corruption::ZoomBlur,
    Corruption::Brightness,
    Corruption::Frost,
    Corruption::ElasticTransform,
    Corruption::GlassBlur,
    Corruption::GaussianNoise,
    Corruption::Pixelate,
    Corruption::JpegCompression,
    Corruption::ImpulseNoise,
];

/// How often a list can be visited, at most.
const MOST_TIMES: usize = 1000;

/// How the domains of a list are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// One after the other.
    InTurn,
    /// All at once, `mixed:`.
    Mixed,
    /// Each at rising and falling severities, `gradual:`.
    Gradual,
    /// In pieces that take turns, `changing:`.
    Changing,
}

/// Which corruptions a stream visits, and how.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Visits {
    manner: Manner,
    /// `None` for images as they are.
    corruptions: Vec<Option<String>>,
    times: usize,
}

impl Visits {
    /// Reads `snow`, `snow,fog`, `standard`, `practical*20`, `mixed:standard`, `gradual:snow,fog` or `changing:standard*20`. Without a text images are as they are.
    pub fn parse(text: Option<&str>) -> Result<Self> {
        let Some(text) = text else {
            return Ok(Self {
                manner: Manner::InTurn,
                corruptions: vec![None],
                times: 1,
            });
        };
        let invalid = |problem: String| Error::Invalid {
            what: "corruption",
            problem,
        };
        let (manner, list) = match text.split_once(':') {
            None => (Manner::InTurn, text),
            Some(("mixed", list)) => (Manner::Mixed, list),
            Some(("gradual", list)) => (Manner::Gradual, list),
            Some(("changing", list)) => (Manner::Changing, list),
            Some((word, _)) => {
                return Err(invalid(format!(
                    "expected `mixed:`, `gradual:` or `changing:` before a list, found `{word}:`"
                )));
            }
        };
        let (list, times) = match list.rsplit_once('*') {
            None => (list, 1),
            Some((list, times)) => {
                let number = times.trim().parse().ok();
                let number = number.filter(|times| (1..=MOST_TIMES).contains(times));
                let problem =
                    || invalid(format!("expected 1 to {MOST_TIMES} times, found `{times}`"));
                (list, number.ok_or_else(problem)?)
            }
        };
        let mut corruptions = Vec::new();
        for name in list.split(',').map(str::trim) {
            let named = |group: &[Corruption]| -> Vec<Option<String>> {
                group
                    .iter()
                    .map(|one| Some(one.name().to_owned()))
                    .collect()
            };
            match name {
                CLEAN => corruptions.push(None),
                "standard" => corruptions.extend(named(&Corruption::STANDARD)),
                "practical" => corruptions.extend(named(&PRACTICAL)),
                _ => corruptions.push(Some(name.to_owned())),
            }
        }
        let visits = Self {
            manner,
            corruptions,
            times,
        };
        visits.check()?;
        Ok(visits.folded())
    }

    fn check(&self) -> Result<()> {
        let invalid = |problem: &str| Error::Invalid {
            what: "corruption",
            problem: problem.to_owned(),
        };
        match self.manner {
            Manner::Mixed | Manner::Gradual if self.times > 1 => Err(invalid(
                "a list is visited several times in turn or in pieces only",
            )),
            Manner::Gradual if self.corruptions.contains(&None) => Err(invalid(
                "`clean` has no severities, which `gradual` goes through",
            )),
            Manner::InTurn | Manner::Mixed | Manner::Gradual | Manner::Changing => Ok(()),
        }
    }

    /// Finds out whether a list repeats itself, and counts how often.
    fn folded(mut self) -> Self {
        if self.manner == Manner::InTurn {
            let whole = self.corruptions.len();
            let repeats = |length: &usize| {
                let shifted = self.corruptions.iter().skip(*length).zip(&self.corruptions);
                whole.is_multiple_of(*length)
                    && shifted.into_iter().all(|(later, one)| later == one)
            };
            let length = (1..=whole).find(repeats).unwrap_or(whole);
            self.corruptions.truncate(length);
            self.times *= whole / length.max(1);
        }
        self
    }

    /// Returns the domains over a data set. A gradual stream has all severities up to the highest, any other one the given.
    pub fn domains(self, data: &str, severity: Option<u8>) -> Result<Domains> {
        if self.manner == Manner::Gradual {
            if let Some(severity) = severity.filter(|&severity| severity != 5) {
                return Err(Error::Invalid {
                    what: "corruption",
                    problem: format!(
                        "`gradual` rises to severity 5 and falls again, found {severity}"
                    ),
                });
            }
            return Ok(Domains::Gradual {
                data: data.to_owned(),
                corruptions: self.corruptions.into_iter().flatten().collect(),
            });
        }
        let domain = |corruption: &Option<String>| Domain {
            data: data.to_owned(),
            corruption: corruption.clone(),
            severity: severity.filter(|_| corruption.is_some()),
        };
        let mut domains: Vec<Domain> = self.corruptions.iter().map(domain).collect();
        let times = self.times;
        Ok(match self.manner {
            Manner::Mixed => Domains::Mixed { domains },
            Manner::Changing => Domains::Changing { domains, times },
            _ if times > 1 => Domains::Recurring { domains, times },
            _ if domains.len() == 1 => Domains::One {
                domain: domains.remove(0),
            },
            _ => Domains::Sequence { domains },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domains(text: &str, severity: Option<u8>) -> Result<Domains> {
        Visits::parse(Some(text))?.domains("cifar10", severity)
    }

    fn snow() -> Domain {
        Domain::corrupted("cifar10", "snow", 5)
    }

    #[test]
    fn a_list_is_visited_in_turn_and_again_if_it_repeats_itself() {
        let clean = Visits::parse(None).unwrap().domains("cifar10", None);
        let domain = Domain::clean("cifar10");
        assert_eq!(
            clean.unwrap(),
            Domains::One {
                domain: domain.clone()
            }
        );
        assert_eq!(
            domains("snow", Some(5)).unwrap(),
            Domains::One { domain: snow() }
        );
        let both = vec![snow(), domain];
        let sequence = Domains::Sequence {
            domains: both.clone(),
        };
        assert_eq!(domains("snow, clean", Some(5)).unwrap(), sequence);
        let again = Domains::Recurring {
            domains: both,
            times: 3,
        };
        for text in ["snow,clean,snow,clean,snow,clean", "snow,clean*3"] {
            assert_eq!(domains(text, Some(5)).unwrap(), again);
        }
    }

    #[test]
    fn groups_have_names() {
        let names = |text: &str| -> Vec<String> {
            let list = domains(text, Some(5)).unwrap().list();
            list.into_iter()
                .filter_map(|domain| domain.corruption)
                .collect()
        };
        let (standard, practical) = (names("standard"), names("practical"));
        assert_eq!((standard.len(), practical.len()), (15, 15));
        assert_eq!(standard[..2], ["gaussian_noise", "shot_noise"]);
        assert_eq!(practical[..2], ["motion_blur", "snow"]);
        let sorted = |mut names: Vec<String>| {
            names.sort_unstable();
            names
        };
        assert_eq!(sorted(standard), sorted(practical), "the same fifteen");
        assert!(matches!(
            domains("practical*20", Some(5)),
            Ok(Domains::Recurring { times: 20, .. })
        ));
    }

    #[test]
    fn domains_can_be_mixed_or_rise_and_fall() {
        assert!(matches!(
            domains("mixed:snow,fog", Some(5)),
            Ok(Domains::Mixed { domains }) if domains.len() == 2 && domains[0] == snow()
        ));
        for (text, expected) in [("changing:snow,fog", 1), ("changing:snow,fog*4", 4)] {
            assert!(matches!(
                domains(text, Some(5)),
                Ok(Domains::Changing { domains, times })
                    if domains[0] == snow() && times == expected
            ));
        }
        let gradual = domains("gradual:snow,fog", None).unwrap();
        assert_eq!(domains("gradual:snow,fog", Some(5)).unwrap(), gradual);
        assert_eq!(
            gradual.list().len(),
            10,
            "five severities of two corruptions"
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, severity, expected) in [
            ("fixed:snow", Some(5), "`gradual:` or `changing:`"),
            ("snow*0", Some(5), "1 to 1000 times, found `0`"),
            ("snow*many", Some(5), "found `many`"),
            ("mixed:snow,fog*2", Some(5), "in turn or in pieces only"),
            ("gradual:snow,clean", None, "`clean` has no severities"),
            (
                "gradual:snow",
                Some(3),
                "rises to severity 5 and falls again, found 3",
            ),
        ] {
            let error = domains(text, severity).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
