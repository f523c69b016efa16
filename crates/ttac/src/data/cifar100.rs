//! CIFAR-100 in its original binary layout, with the hundred fine labels.
//!
//! `train.bin` and `test.bin`: 50,000 and 10,000 records of a coarse label byte, a fine label byte and
//! 1,024 red, green and blue bytes. Coarse labels are not read.

use std::fmt;
use std::path::Path;

use super::cifar::{Layout, Stored};
use super::problem::{absent, contents};
use super::{Batch, Dataset, SampleId, Split};
use crate::Result;

/// Names of the hundred fine classes, in the order of the labels.
#[rustfmt::skip]
pub const CIFAR100_CLASSES: [&str; 100] = [
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur",
    "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard",
    "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain",
    "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket",
    "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider",
    "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
];

const NAME: &str = "cifar100";

/// One split of CIFAR-100 in memory (154 MB for training, 31 MB for test).
pub struct Cifar100(Stored);

impl fmt::Debug for Cifar100 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cifar100({} images)", self.0.labels.len())
    }
}

impl Cifar100 {
    /// Reads a split from a folder.
    pub fn open(root: &Path, split: Split) -> Result<Self> {
        if !root.is_dir() {
            return Err(absent(NAME, root, "no such folder".to_owned()));
        }
        let layout = Layout {
            data: NAME,
            label_bytes: 2,
            num_classes: CIFAR100_CLASSES.len(),
            count: match split {
                Split::Train => 50_000,
                Split::Test => 10_000,
            },
        };
        let file = format!("{split}.bin");
        // The original archive unpacks into a folder of its own.
        let nested = root.join("cifar-100-binary");
        let folder = [root, &nested]
            .into_iter()
            .find(|folder| folder.join(&file).is_file())
            .ok_or_else(|| absent(NAME, root, describe_foreign(root, split)))?;
        let mut set = Stored::default();
        set.append_records(&layout, &folder.join(file))?;
        Ok(Self(set))
    }
}

/// What a folder holds instead of CIFAR-100.
fn describe_foreign(root: &Path, split: Split) -> String {
    let expected = format!("expected `{split}.bin`");
    if root.join("cifar-100-python").is_dir() || root.join(split.to_string()).is_file() {
        return format!("{expected}, found the Python pickles; the binary version is needed");
    }
    format!("{expected}, {}", contents(root))
}

impl Dataset for Cifar100 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn len(&self) -> usize {
        self.0.labels.len()
    }

    fn classes(&self) -> Vec<String> {
        CIFAR100_CLASSES.map(str::to_owned).to_vec()
    }

    fn batch(&self, ids: &[SampleId]) -> Result<Batch> {
        Ok(self.0.batch(ids))
    }
}
