//! What a family of networks says about itself, in its own file.

use std::collections::BTreeMap;

use super::PublishedArchitecture;

/// A family's entry in the list of architectures: the constant `ENTRY` of its file.
pub(super) struct Entry<C: 'static> {
    /// Value of `"family"` in the JSON of a configuration. It equals the variant in the list of `backbone/mod.rs`, in
    /// kebab case.
    pub family: &'static str,
    /// A few words on what networks of this family are.
    pub about: &'static str,
    /// Whose published weights have the keys of this family.
    pub weights: &'static str,
    /// The configurations that can be asked for by name.
    pub published: &'static [Published<C>],
}

/// A configuration with a name.
pub(super) struct Published<C> {
    /// The name, unique among all families.
    name: &'static str,
    /// The number of parameters, such as `0.27 M`, with as many classes as the published weights have.
    parameters: &'static str,
    /// Gives the configuration for a number of classes.
    config: fn(num_classes: usize) -> C,
}

impl<C> Published<C> {
    pub const fn new(
        name: &'static str,
        parameters: &'static str,
        config: fn(num_classes: usize) -> C,
    ) -> Self {
        Self {
            name,
            parameters,
            config,
        }
    }
}

impl<C> Entry<C> {
    /// Gives the configuration of a name, if it is one of this family.
    pub fn by_name(&self, name: &str, num_classes: usize) -> Option<C> {
        let published = self.published.iter().find(|one| one.name == name)?;
        Some((published.config)(num_classes))
    }

    /// Lists the published configurations of this family.
    pub fn list(self) -> impl Iterator<Item = PublishedArchitecture> {
        self.published.iter().map(move |one| PublishedArchitecture {
            name: one.name,
            parameters: one.parameters,
            about: self.about,
            family: self.family,
            weights: self.weights,
        })
    }
}

/// What is asked of a family's configuration, beside a field `num_classes` and a function `init`, which builds the network with
/// all weights zero and fresh norms. Only [`input`](Self::input) has to be written.
pub(super) trait Family {
    /// Tells what the network takes.
    fn input(&self) -> InputForm;

    /// Lists everything that makes the configuration impossible. That all numbers are 1 to 100000 is checked for every family, but
    /// only afterwards: zeros come here, too.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Gives the prefixes of keys in published files that an import passes over.
    fn ignored_keys(&self) -> &'static [&'static str] {
        &[]
    }

    /// Tells which fields would have to be changed for the network to fit a file with tensors of these shapes, by key.
    fn other_sizes(&self, _found: &BTreeMap<String, Vec<usize>>) -> OtherSizes {
        OtherSizes::default()
    }
}

/// The fields of a configuration that the shapes in a file contradict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherSizes {
    /// Fields with the values that would fit.
    pub fields: Vec<(&'static str, usize)>,
    /// Fields that depend on those and that no shape tells.
    pub untold: Vec<&'static str>,
}

/// What a network takes: images, or clouds of points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputForm {
    /// The network takes images.
    Images {
        /// Height and width in pixels of the images the network was designed for.
        size: [usize; 2],
        /// Whether it takes no other size. A convolution takes any; a transformer has learned the positions of its patches.
        fixed: bool,
    },
    /// The network takes clouds of points.
    Clouds {
        /// Points of the clouds the network was designed for.
        points: usize,
        /// The fewest points it takes: a point needs so many neighbours.
        fewest: usize,
    },
}

impl InputForm {
    /// Describes a network that was designed for square images of a side and takes others as well.
    pub const fn images(side: usize) -> Self {
        Self::Images {
            size: [side; 2],
            fixed: false,
        }
    }

    /// Gives the height and width of the network's input, `[batch, height, width, 3]`. A cloud is as high as it has points, and one wide.
    pub const fn size(self) -> [usize; 2] {
        match self {
            Self::Images { size, .. } => size,
            Self::Clouds { points, .. } => [points, 1],
        }
    }
}

/// Says what is wrong with the depth of a network of three stages of two-layer blocks, where `outside` layers lie outside the
/// stages.
pub(super) fn depth_problem(depth: usize, outside: usize) -> Option<String> {
    let possible = depth >= outside + 6 && (depth - outside).is_multiple_of(6);
    let problem = || format!("`depth` must be 6n + {outside} with n >= 1, found {depth}");
    (!possible).then(problem)
}
