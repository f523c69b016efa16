//! Plans: everything a configuration asks for, and nothing else.

use std::collections::HashSet;

use proptest::prelude::*;
use ttac::data::SampleId;
use ttac::stream::{
    Arrival, Choose, Domain, Domains, Order, Population, Proportions, StreamConfig, StreamPlan,
    Subset, Within,
};

/// Labels of a data set with `per_class` samples of every class, as if shuffled.
fn labels(classes: usize, per_class: usize) -> Vec<usize> {
    let count = classes * per_class;
    (0..count)
        .map(|i| (i * 7 + i / classes) % classes)
        .collect()
}

fn domains(count: usize) -> Vec<Domain> {
    let names = ["snow", "fog", "frost", "contrast"];
    let named = |name: &&str| Domain::corrupted("cifar10", name, 5);
    names[..count].iter().map(named).collect()
}

fn one() -> Domains {
    Domains::One {
        domain: Domain::corrupted("cifar10", "snow", 5),
    }
}

fn plan(config: &StreamConfig, labels: &[usize]) -> StreamPlan {
    let classes = labels.iter().max().unwrap() + 1;
    let lists = vec![Population::Labelled(labels); config.domains.list().len()];
    config.plan(&lists, classes).unwrap()
}

fn problem(config: &StreamConfig) -> String {
    config.validate().unwrap_err().to_string()
}

fn arrivals(batches: &[Vec<Arrival>]) -> Vec<Arrival> {
    batches.concat()
}

/// Share of neighbours in the stream that are of one class.
fn correlation(plan: &StreamPlan, labels: &[usize]) -> f64 {
    let stream = arrivals(&plan.batches);
    let class = |arrival: &Arrival| labels[arrival.id as usize];
    let pairs = stream.windows(2);
    let same = pairs.filter(|pair| class(&pair[0]) == class(&pair[1]));
    same.count() as f64 / (stream.len() - 1) as f64
}

fn counts(batches: &[Vec<Arrival>], labels: &[usize], classes: usize) -> Vec<usize> {
    let mut counts = vec![0; classes];
    for arrival in batches.iter().flatten() {
        counts[labels[arrival.id as usize]] += 1;
    }
    counts
}

fn any_order() -> impl Strategy<Value = Order> {
    let correlated = (0.01..10.0, prop::option::of(1_usize..8), prop::bool::ANY);
    prop_oneof![
        Just(Order::InOrder {}),
        Just(Order::Shuffled {}),
        correlated.prop_map(|(concentration, slots, runs)| Order::Correlated {
            concentration,
            slots,
            within: if runs { Within::Runs } else { Within::Shuffled },
        }),
        (0.01..10.0).prop_map(|concentration| Order::Note { concentration }),
    ]
}

fn any_domains() -> impl Strategy<Value = Domains> {
    let list = || (1_usize..4).prop_map(domains);
    let corruptions = prop_oneof![Just(vec!["snow"]), Just(vec!["snow", "fog"])];
    prop_oneof![
        Just(one()),
        list().prop_map(|domains| Domains::Sequence { domains }),
        list().prop_map(|domains| Domains::Mixed { domains }),
        (list(), 1_usize..4).prop_map(|(domains, times)| Domains::Recurring { domains, times }),
        corruptions.prop_map(|names| Domains::Gradual {
            data: "cifar10".to_owned(),
            corruptions: names.into_iter().map(str::to_owned).collect(),
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_visit_brings_every_chosen_sample_once(
        order in any_order(),
        domains in any_domains(),
        batch_size in 1_usize..20,
        seed in 0_u64..1000,
        subset in prop::option::of((1_usize..40, prop::bool::ANY)),
    ) {
        let labels = labels(5, 8);
        let choose = |random| if random { Choose::Random } else { Choose::First };
        let mut config = StreamConfig::new(domains.clone())
            .with_order(order)
            .with_batch_size(batch_size)
            .with_seed(seed);
        config.subset = subset.map(|(count, random)| Subset { count, choose: choose(random) });
        let plan = plan(&config, &labels);
        let size = subset.map_or(labels.len(), |(count, _)| count);

        prop_assert_eq!(plan.visits.iter().sum::<usize>(), plan.batches.len());
        for visit in plan.by_visit() {
            let stream = arrivals(visit);
            let different: HashSet<Arrival> = stream.iter().copied().collect();
            prop_assert_eq!(different.len(), stream.len(), "a sample arrived twice");
            let visited: HashSet<usize> = stream.iter().map(|arrival| arrival.domain).collect();
            for domain in &visited {
                let count = stream.iter().filter(|arrival| arrival.domain == *domain).count();
                prop_assert_eq!(count, size);
            }
            let expected = if matches!(domains, Domains::Mixed { .. }) { domains.list().len() } else { 1 };
            prop_assert_eq!(visited.len(), expected);
            // All batches are full but the last, which is what is left.
            let (last, full) = visit.split_last().unwrap();
            prop_assert!(full.iter().all(|batch| batch.len() == batch_size));
            prop_assert_eq!(last.len(), (stream.len() - 1) % batch_size + 1);
        }
        if subset.is_some_and(|(_, random)| !random) {
            prop_assert!(plan.batches.iter().flatten().all(|arrival| (arrival.id as usize) < size));
        }

        // The same configuration, the same plan, also by way of a file's text.
        let again = self::plan(&config, &labels);
        prop_assert_eq!(&again, &plan);
        let text = serde_json::to_string(&plan).unwrap();
        let read: StreamPlan = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(read.digest(), plan.digest());
        read.check(&vec![labels.len(); domains.list().len()]).unwrap();
    }

    #[test]
    fn label_shift_keeps_its_proportions_to_the_sample(
        weights in prop::collection::vec(0.0..1.0, 4),
        seed in 0_u64..1000,
        subset in prop::option::of(1_usize..25),
    ) {
        let sum: f64 = weights.iter().sum();
        prop_assume!(sum > 0.1);
        let shares: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
        let labels = labels(4, 25);
        let order = Order::LabelShift { proportions: Proportions::Given(shares.clone()) };
        let mut config = StreamConfig::new(one()).with_order(order).with_seed(seed);
        config.subset = subset.map(|count| Subset { count, choose: Choose::Random });
        let plan = plan(&config, &labels);
        let counts = counts(&plan.batches, &labels, 4);
        let total: usize = counts.iter().sum();
        if let Some(count) = subset {
            prop_assert_eq!(total, count);
        } else {
            // As many as there can be: a class is used up, but for rounding.
            let largest = *counts.iter().max().unwrap();
            prop_assert!(largest >= 24, "{counts:?}");
        }
        for (count, share) in counts.iter().zip(&shares) {
            let exact = share * total as f64;
            prop_assert!((*count as f64 - exact).abs() < 1.0, "{counts:?} for {shares:?}");
        }
        let different: HashSet<Arrival> = arrivals(&plan.batches).into_iter().collect();
        prop_assert_eq!(different.len(), total);
    }
}

#[test]
fn a_changing_stream_brings_the_batches_of_every_domain_in_their_order_in_pieces() {
    let labels = labels(5, 8);
    let (list, times) = (domains(3), 4);
    let with = |domains| {
        let config = StreamConfig::new(domains).with_batch_size(3).with_seed(5);
        plan(&config, &labels)
    };
    let changing = with(Domains::Changing {
        domains: list.clone(),
        times,
    });
    let recurring = with(Domains::Recurring {
        domains: list,
        times,
    });
    // In every round the batches of a domain are those that it brings when it is not cut into pieces.
    let rounds = |plan: &StreamPlan| -> Vec<Vec<Vec<Arrival>>> {
        let all = plan.batches.len() / times;
        plan.batches.chunks(all).map(<[_]>::to_vec).collect()
    };
    for (pieces, whole) in rounds(&changing).iter().zip(rounds(&recurring)) {
        for domain in 0..3 {
            let own = |batches: &[Vec<Arrival>]| -> Vec<Vec<Arrival>> {
                let of_domain = batches.iter().filter(|batch| batch[0].domain == domain);
                of_domain.cloned().collect()
            };
            assert_eq!(own(pieces), own(&whole));
        }
    }
    assert!(changing.visits.len() > recurring.visits.len());
    for visit in changing.by_visit() {
        let domain = visit[0][0].domain;
        assert!(
            visit
                .iter()
                .flatten()
                .all(|arrival| arrival.domain == domain)
        );
    }
    // Rounds are cut differently.
    let order = |round: &Vec<Vec<Arrival>>| round.iter().map(|b| b[0].domain).collect::<Vec<_>>();
    let rounds = rounds(&changing);
    assert_ne!(order(&rounds[0]), order(&rounds[1]));
}

#[test]
fn the_usual_stream_is_a_permutation_in_batches_of_256_and_the_rest() {
    let labels = labels(10, 1000);
    let seeded = |seed| plan(&StreamConfig::new(one()).with_seed(seed), &labels);
    let zero = seeded(0);
    assert_eq!(zero.batches.len(), 40);
    assert_eq!(zero.batches[39].len(), 16);
    assert_ne!(zero.digest(), seeded(1).digest());
    // A permutation worth its name: about one sample stays where it was.
    let stream = arrivals(&zero.batches);
    let fixed = (0..)
        .zip(&stream)
        .filter(|(place, arrival)| *place == arrival.id);
    assert!(fixed.count() < 8);
    // The first domain of a sequence is visited in the same order as alone, the second in another.
    let sequence = Domains::Sequence {
        domains: domains(2),
    };
    let both = plan(&StreamConfig::new(sequence), &labels);
    let ids = |batches: &[Vec<Arrival>]| -> Vec<SampleId> {
        batches.iter().flatten().map(|arrival| arrival.id).collect()
    };
    assert_eq!(ids(&both.batches[..40]), ids(&zero.batches));
    assert_ne!(ids(&both.batches[40..]), ids(&zero.batches));
}

#[test]
fn a_plan_never_changes_between_versions() {
    let labels = labels(3, 4);
    let digest = |order| {
        let config = StreamConfig::new(one())
            .with_order(order)
            .with_batch_size(5);
        plan(&config, &labels).digest()[..16].to_owned()
    };
    assert_eq!(digest(Order::InOrder {}), "9586ae46a77d1061");
    assert_eq!(digest(Order::Shuffled {}), "fdd1415f206d6131");
}

#[test]
fn correlation_rises_as_the_concentration_falls() {
    let labels = labels(10, 100);
    let mean = |concentration: f64, within| {
        let order = Order::Correlated {
            concentration,
            slots: Some(20),
            within,
        };
        let seeded = |seed| {
            StreamConfig::new(one())
                .with_order(order.clone())
                .with_seed(seed)
        };
        let each = (0..10).map(|seed| correlation(&plan(&seeded(seed), &labels), &labels));
        each.sum::<f64>() / 10.0
    };
    for within in [Within::Runs, Within::Shuffled] {
        let rising = [100.0, 1.0, 0.1, 0.01].map(|concentration| mean(concentration, within));
        assert!(rising.is_sorted(), "{rising:?}");
        assert!(rising[3] > rising[0] + 0.1, "{rising:?}");
    }
    // With equal shares and no runs, a neighbour is of the same class one time in ten.
    let even = mean(1e6, Within::Shuffled);
    assert!((even - 0.1).abs() < 0.02, "{even}");
}

#[test]
fn gradual_severities_rise_and_fall() {
    let gradual = Domains::Gradual {
        data: "cifar10".to_owned(),
        corruptions: vec!["snow".to_owned(), "fog".to_owned()],
    };
    let plan = plan(&StreamConfig::new(gradual), &labels(2, 3));
    let domains = plan.domains();
    let visited: Vec<String> = plan
        .by_visit()
        .map(|visit| domains[visit[0][0].domain].to_string())
        .collect();
    let expected: Vec<String> = ["snow", "fog"]
        .iter()
        .flat_map(|name| {
            [1, 2, 3, 4, 5, 4, 3, 2, 1].map(|severity| format!("cifar10 {name} {severity}"))
        })
        .collect();
    assert_eq!(visited, expected);
}

#[test]
fn mixed_domains_take_turns_in_order() {
    let mixed = Domains::Mixed {
        domains: domains(3),
    };
    let config = StreamConfig::new(mixed)
        .with_order(Order::InOrder {})
        .with_batch_size(1);
    let plan = plan(&config, &labels(2, 2));
    let stream = arrivals(&plan.batches);
    let pairs: Vec<(usize, SampleId)> = stream.iter().map(|&arrival| arrival.into()).collect();
    assert_eq!(pairs[..4], [(0, 0), (1, 0), (2, 0), (0, 1)]);
    assert_eq!(plan.batches.len(), 12);
}

#[test]
fn sampled_proportions_are_far_from_even_at_a_small_concentration() {
    let labels = labels(10, 100);
    let largest = |concentration| {
        let order = Order::LabelShift {
            proportions: Proportions::Dirichlet(concentration),
        };
        let plan = plan(&StreamConfig::new(one()).with_order(order), &labels);
        let counts = counts(&plan.batches, &labels, 10);
        *counts.iter().max().unwrap() as f64 / plan.samples() as f64
    };
    assert!(largest(0.1) > 0.3);
    assert!(largest(1e5) < 0.11);
}

#[test]
fn a_plan_prints_as_a_summary() {
    let recurring = Domains::Recurring {
        domains: domains(2),
        times: 2,
    };
    let plan = plan(
        &StreamConfig::new(recurring).with_batch_size(4),
        &labels(2, 3),
    );
    let text = plan.to_string().replace(&plan.digest()[..12], "DIGEST");
    insta::assert_snapshot!(text, @"
    24 samples in 8 batches of up to 4, shuffled, seed 0, digest DIGEST
      cifar10 snow 5: 6 samples
      cifar10 fog 5: 6 samples
      cifar10 snow 5: 6 samples
      cifar10 fog 5: 6 samples
    ");
}

#[test]
fn a_configuration_reads_like_this() {
    let config: StreamConfig = serde_json::from_str(
        r#"{
            "domains": { "kind": "gradual", "data": "cifar10", "corruptions": ["snow"] },
            "order": { "kind": "correlated", "concentration": 0.1 },
            "batch-size": 64,
            "subset": { "count": 100 },
            "seed": 3
        }"#,
    )
    .unwrap();
    assert_eq!(config.batch_size, 64);
    assert_eq!(config.subset.unwrap().choose, Choose::First);
    let short = r#"{ "domains": { "kind": "one", "domain": { "data": "cifar10" } } }"#;
    let short: StreamConfig = serde_json::from_str(short).unwrap();
    assert_eq!(
        short,
        StreamConfig::new(Domains::One {
            domain: Domain::clean("cifar10")
        })
    );
    for unknown in [
        r#"{ "domains": { "kind": "one", "domain": { "data": "a" } }, "batch": 1 }"#,
        r#"{ "domains": { "kind": "one", "domain": { "data": "a" }, "times": 2 } }"#,
        r#"{ "domains": { "kind": "one", "domain": { "data": "a" } }, "order": { "kind": "shuffled", "seed": 1 } }"#,
    ] {
        let error = serde_json::from_str::<StreamConfig>(unknown).unwrap_err();
        assert!(error.to_string().contains("unknown field"), "{error}");
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let mut config = StreamConfig::new(Domains::Recurring {
        domains: vec![
            Domain::corrupted("cifar10", "snow", 6),
            Domain {
                severity: None,
                ..Domain::corrupted("cifar10", "fog", 1)
            },
            Domain::clean("cifar10"),
            Domain::clean("cifar10"),
        ],
        times: 0,
    })
    .with_batch_size(0)
    .with_subset(0, Choose::First)
    .with_order(Order::Correlated {
        concentration: -1.0,
        slots: Some(0),
        within: Within::Runs,
    });
    insta::assert_snapshot!(problem(&config).replace("; ", "\n"), @"
    invalid stream: domain `cifar10 snow 6`: expected a severity from 1 to 5, found 6
    domain `cifar10 fog`: corruption `fog` needs a severity from 1 to 5
    domain `cifar10` is listed twice (`recurring` visits domains again)
    `times`: expected at least 1, found 0
    `concentration`: expected a number from 0.001 to 1000000, found -1
    `slots`: expected at least 1, found 0
    `batch-size`: expected at least 1, found 0
    `subset`: expected a count of at least 1, found 0
    ");

    let empty = Domains::Mixed {
        domains: Vec::new(),
    };
    assert_eq!(
        problem(&StreamConfig::new(empty)),
        "invalid stream: the list of domains is empty"
    );
    config = StreamConfig::new(one()).with_order(Order::LabelShift {
        proportions: Proportions::Given(vec![0.5, f64::NAN, 1.5]),
    });
    assert_eq!(
        problem(&config),
        "invalid stream: proportion of class 1: expected a number from 0 to 1, found NaN; \
         proportion of class 2: expected a number from 0 to 1, found 1.5"
    );
}

#[test]
fn what_the_data_cannot_give_is_refused() {
    let labels = labels(2, 5);
    let error = |config: &StreamConfig| {
        config
            .plan(&[Population::Labelled(&labels)], 2)
            .unwrap_err()
            .to_string()
    };
    let config = StreamConfig::new(one());
    assert_eq!(
        error(&config.clone().with_subset(11, Choose::First)),
        "invalid stream: domain `cifar10 snow 5`: `subset`: expected at most its 10 samples, found 11"
    );
    let shifted = |values: Vec<f64>| {
        config.clone().with_order(Order::LabelShift {
            proportions: Proportions::Given(values),
        })
    };
    assert_eq!(
        error(&shifted(vec![0.25, 0.25, 0.5])),
        "proportions of a stream: expected 2, one for every class, found 3"
    );
    assert_eq!(
        error(&shifted(vec![0.5, 0.4])),
        "invalid stream: proportions: expected a sum of 1, found 0.9"
    );
    assert_eq!(
        error(&shifted(vec![1.0, 0.0]).with_subset(6, Choose::First)),
        "invalid stream: domain `cifar10 snow 5`: `subset`: expected at most the 5 samples \
         that these proportions leave, found 6"
    );
    let two = Domains::Sequence {
        domains: domains(2),
    };
    assert_eq!(
        error(&StreamConfig::new(two)),
        "labels of a stream: expected 2 lists, one for every domain, found 1"
    );
    let nothing = config
        .plan(&[Population::Labelled(&[])], 2)
        .unwrap_err()
        .to_string();
    assert_eq!(
        nothing,
        "invalid stream: domain `cifar10 snow 5`: it has no samples"
    );
}

#[test]
fn only_orders_by_class_need_labels() {
    let labels = labels(2, 5);
    let unlabelled = [Population::Unlabelled(labels.len())];
    for order in [Order::InOrder {}, Order::Shuffled {}] {
        let config = StreamConfig::new(one())
            .with_order(order)
            .with_subset(7, Choose::Random);
        assert_eq!(config.plan(&unlabelled, 0).unwrap(), plan(&config, &labels));
    }
    let correlated = Order::Correlated {
        concentration: 0.1,
        slots: None,
        within: Within::Runs,
    };
    let shifted = Order::LabelShift {
        proportions: Proportions::Dirichlet(1.0),
    };
    for order in [correlated, shifted] {
        let config = StreamConfig::new(one()).with_order(order);
        assert_eq!(
            config.plan(&unlabelled, 2).unwrap_err().to_string(),
            "invalid stream: domain `cifar10 snow 5`: expected the class of every sample, which this order needs, \
             found 10 samples without labels"
        );
    }
}

#[test]
fn a_saved_plan_is_replayed_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let made = plan(&StreamConfig::new(one()), &labels(2, 5));
    made.save(&path).unwrap();
    let read = StreamPlan::load(&path).unwrap();
    assert_eq!(read, made);
    read.check(&[10]).unwrap();
    assert_eq!(
        read.check(&[3])
            .unwrap_err()
            .to_string()
            .split(" asks")
            .next(),
        Some("invalid stream: batch 0")
    );
    let mut damaged = read;
    damaged.visits.push(1);
    damaged.batches[0].clear();
    assert_eq!(
        damaged.check(&[10, 10]).unwrap_err().to_string(),
        "invalid stream: expected 1 domains as in the plan, found 2; \
         expected 2 batches by its visits, found 1; batch 0 is empty"
    );
    std::fs::write(&path, "{}").unwrap();
    let error = StreamPlan::load(&path).unwrap_err().to_string();
    assert!(
        error.contains("plan.json` is not a stream plan: missing field"),
        "{error}"
    );
}

/// The streams of the field, by the words that the command and grids know.
fn by_word(word: &str) -> StreamConfig {
    StreamConfig::new(one()).with_order(word.parse().unwrap())
}

#[test]
fn chunks_of_note_are_full_and_none_is_nearly_empty() {
    let labels = labels(10, 1000);
    for seed in 0..5 {
        let config = by_word("note").with_seed(seed).with_batch_size(64);
        let plan = plan(&config, &labels);
        assert_eq!(plan.samples(), 10_000, "every sample once");
        // Far more neighbours of one class than the tenth that chance would give.
        assert!(correlation(&plan, &labels) > 0.9);
    }
    // With a high concentration chunks are alike, and each has a run of every class.
    let even = plan(&by_word("note:1000000"), &labels);
    let stream = arrivals(&even.batches);
    let class = |arrival: &Arrival| labels[arrival.id as usize];
    let runs = stream.chunk_by(|a, b| class(a) == class(b));
    let lengths: Vec<usize> = runs.map(<[Arrival]>::len).collect();
    // Two chunks may meet in the same class, which makes one run of two.
    assert!((91..=100).contains(&lengths.len()), "{}", lengths.len());
    assert!(
        lengths.iter().all(|length| (95..=210).contains(length)),
        "{lengths:?}"
    );
}

#[test]
fn too_few_samples_for_ten_in_a_chunk_are_still_laid_out() {
    let labels = labels(5, 2);
    let plan = plan(&by_word("note"), &labels);
    let different: HashSet<Arrival> = arrivals(&plan.batches).into_iter().collect();
    assert_eq!(different.len(), 10);
}

#[test]
fn under_online_shift_one_class_after_the_other_prevails() {
    let labels = labels(10, 30);
    let pure = plan(&by_word("online-shift"), &labels);
    let stream = arrivals(&pure.batches);
    assert_eq!(stream.len(), 1000, "a hundred draws of each class");
    let mut seen = HashSet::new();
    for stretch in stream.chunks(100) {
        let classes: HashSet<usize> = stretch.iter().map(|a| labels[a.id as usize]).collect();
        // At a ratio of half a million one draw in fifty thousand is of another class.
        assert_eq!(classes.len(), 1);
        seen.extend(classes);
    }
    assert_eq!(seen.len(), 10);
    let different: HashSet<&Arrival> = stream.iter().collect();
    assert!(
        different.len() < 300,
        "of thirty samples in a hundred draws some never come"
    );

    // A ratio of one is no shift at all: in a stretch all classes come.
    let even = Order::OnlineShift {
        ratio: 1.0,
        draws: Some(500),
    };
    let even = plan(&StreamConfig::new(one()).with_order(even), &labels);
    let counts = counts(&even.batches, &labels, 10);
    // 5,000 draws of ten classes have a deviation of 21 from 500; four of them are allowed.
    assert!(
        counts.iter().all(|count| count.abs_diff(500) < 85),
        "{counts:?}"
    );
}

#[test]
fn imbalanced_classes_shrink_by_the_same_factor() {
    let labels = labels(10, 1000);
    let plan_of = |varied| {
        let order = Order::Imbalanced {
            factor: 100.0,
            concentration: None,
            varied,
        };
        let domains = Domains::Sequence {
            domains: domains(3),
        };
        plan(&StreamConfig::new(domains).with_order(order), &labels)
    };
    let expected: Vec<usize> = (0..10)
        .map(|class| (1000.0 * 100.0_f64.powf(-f64::from(class) / 9.0) + 1e-9) as usize)
        .collect();
    assert_eq!((expected[0], expected[9]), (1000, 10));
    let fixed = plan_of(false);
    for visit in fixed.by_visit() {
        assert_eq!(counts(visit, &labels, 10), expected);
    }
    let varied = plan_of(true);
    let sizes: Vec<Vec<usize>> = varied
        .by_visit()
        .map(|visit| counts(visit, &labels, 10))
        .collect();
    assert!(sizes[0] != sizes[1] || sizes[1] != sizes[2]);
    for mut size in sizes {
        size.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(size, expected, "the same sizes, of other classes");
    }
    assert!(correlation(&fixed, &labels) > 0.8, "classes come in runs");
}

#[test]
fn sorted_batches_of_two_hundred_have_one_class() {
    let labels = labels(10, 1000);
    let plan = plan(&by_word("sorted").with_batch_size(200), &labels);
    for batch in &plan.batches {
        let classes: HashSet<usize> = batch.iter().map(|a| labels[a.id as usize]).collect();
        assert_eq!(classes.len(), 1);
    }
}

#[test]
fn words_and_fields_of_the_fields_streams_are_the_same_and_bad_ones_are_refused() {
    for (word, fields) in [
        ("note:0.2", r#"{"kind":"note","concentration":0.2}"#),
        ("online-shift:10", r#"{"kind":"online-shift","ratio":10.0}"#),
        ("imbalanced:200", r#"{"kind":"imbalanced","factor":200.0}"#),
    ] {
        let of_word: Order = word.parse().unwrap();
        let of_fields: Order = serde_json::from_str(fields).unwrap();
        assert_eq!(of_word, of_fields);
        let written = serde_json::to_string(&of_word).unwrap();
        assert_eq!(serde_json::from_str::<Order>(&written).unwrap(), of_word);
        assert!(of_word.needs_labels());
    }
    for (word, expected) in [
        ("note:0", "`concentration`: expected"),
        ("online-shift:0.5", "`ratio`: expected a number from 1"),
        ("imbalanced:nan", "`factor`: expected a number from 1"),
    ] {
        assert!(problem(&by_word(word)).contains(expected), "{word}");
    }
    let error = "practice:3".parse::<Order>().unwrap_err().to_string();
    assert!(error.contains("`online-shift`"), "{error}");
}
