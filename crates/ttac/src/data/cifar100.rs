//! CIFAR-100 in its original binary layout, with the hundred fine labels.
//!
//! `train.bin` and `test.bin`: 50,000 and 10,000 records of a coarse label byte, a fine label byte and
//! 1,024 red, green and blue bytes. Coarse labels are not read.

use std::path::Path;

use super::cifar::{Layout, Records, foreign};
use super::problem::{check_folder, folder_with};
use super::{InMemory, Split};
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

/// Reads a split of CIFAR-100 from a folder (154 MB for training, 31 MB for test).
pub fn open_cifar100(root: &Path, split: Split) -> Result<InMemory> {
    check_folder(NAME, root)?;
    let layout = Layout {
        data: NAME,
        label_bytes: 2,
        num_classes: CIFAR100_CLASSES.len(),
        count: split.of(50_000, 10_000),
    };
    let file = format!("{split}.bin");
    // The original archive unpacks into a folder of its own.
    let folder = folder_with(root, "cifar-100-binary", &file).ok_or_else(|| {
        let pickles = ["cifar-100-python", &split.to_string()];
        foreign(NAME, root, &format!("expected `{file}`"), pickles)
    })?;
    let mut set = Records::default();
    set.append_records(&layout, &folder.join(file))?;
    set.into_set(NAME, &CIFAR100_CLASSES)
}
