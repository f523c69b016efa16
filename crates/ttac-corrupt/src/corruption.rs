/// Declares an enum of corruptions from one table of variants and their names, with all that follows
/// from the table.
macro_rules! corruptions {
    (
        $(#[$about:meta])*
        pub enum $Type:ident {
            $($(#[$doc:meta])* $Variant:ident = $name:literal,)*
        }
        $(#[$all:meta])*
        const ALL: $count:literal;
        $(#[$spelling:meta])*
        fn name;
        error $Unknown:ident;
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $Type {
            $($(#[$doc])* $Variant,)*
        }

        impl $Type {
            $(#[$all])*
            pub const ALL: [Self; $count] = [$(Self::$Variant),*];

            $(#[$spelling])*
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)*
                }
            }
        }

        impl std::fmt::Display for $Type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.name())
            }
        }

        impl std::str::FromStr for $Type {
            type Err = crate::Error;

            /// Accepts `-` for `_` and any case.
            fn from_str(text: &str) -> Result<Self, crate::Error> {
                let unknown = |nearest| crate::Error::$Unknown {
                    name: text.to_owned(),
                    nearest,
                };
                crate::corruption::by_name(&Self::ALL, Self::name, text).map_err(unknown)
            }
        }
    };
}
pub(crate) use corruptions;

corruptions! {
    /// One of the nineteen corruptions.
    ///
    /// Names are spelt as the files of CIFAR-10-C are:
    ///
    /// ```
    /// use ttac_corrupt::Corruption;
    ///
    /// assert_eq!(Corruption::JpegCompression.name(), "jpeg_compression");
    /// assert_eq!("jpeg-compression".parse::<Corruption>()?, Corruption::JpegCompression);
    /// assert_eq!(Corruption::STANDARD.len() + Corruption::HELD_OUT.len(), Corruption::ALL.len());
    /// # Ok::<(), ttac_corrupt::Error>(())
    /// ```
    pub enum Corruption {
        /// Normal noise on every channel of every pixel.
        GaussianNoise = "gaussian_noise",
        /// Poisson noise: the light arrives in few photons.
        ShotNoise = "shot_noise",
        /// Salt and pepper, on single channels.
        ImpulseNoise = "impulse_noise",
        /// Blur by a disk, as of a lens out of focus.
        DefocusBlur = "defocus_blur",
        /// Pixels displaced at random between two blurs, as behind frosted glass.
        GlassBlur = "glass_blur",
        /// Blur along a random direction.
        MotionBlur = "motion_blur",
        /// Average over growing zooms.
        ZoomBlur = "zoom_blur",
        /// Streaks of white on a whitened image.
        Snow = "snow",
        /// A photograph of ice blended in. Without photographs the result is `frost-like`: see
        /// [`FrostTextures`](crate::FrostTextures).
        Frost = "frost",
        /// A plasma cloud blended in.
        Fog = "fog",
        /// More value in hue, saturation, value.
        Brightness = "brightness",
        /// Less contrast.
        Contrast = "contrast",
        /// A random affine map, then a random smooth displacement.
        ElasticTransform = "elastic_transform",
        /// Shrunk and enlarged again.
        Pixelate = "pixelate",
        /// JPEG at low quality.
        JpegCompression = "jpeg_compression",
        /// Held out: normal noise proportional to the value.
        SpeckleNoise = "speckle_noise",
        /// Held out: Gaussian blur.
        GaussianBlur = "gaussian_blur",
        /// Held out: drops of water (severities 1 to 3) or mud (4 and 5).
        Spatter = "spatter",
        /// Held out: less (severities 1 and 2) or more saturation.
        Saturate = "saturate",
    }
    /// The [standard](Self::STANDARD) corruptions, then the [held-out](Self::HELD_OUT) ones.
    const ALL: 19;
    /// Returns the name in the spelling of the CIFAR-10-C files. What was made without frost photographs
    /// must be called by [`Corruptor::name_of`](crate::Corruptor::name_of) instead.
    fn name;
    error UnknownCorruption;
}

impl Corruption {
    /// The fifteen that results are reported on, in the usual order.
    pub const STANDARD: [Self; 15] = *Self::ALL.first_chunk().unwrap();

    /// The four that are kept for choosing constants.
    pub const HELD_OUT: [Self; 4] = *Self::ALL.last_chunk().unwrap();

    /// Tells whether the result depends on the seed.
    pub const fn is_random(self) -> bool {
        !matches!(
            self,
            Self::DefocusBlur
                | Self::ZoomBlur
                | Self::Brightness
                | Self::Contrast
                | Self::Pixelate
                | Self::JpegCompression
                | Self::GaussianBlur
                | Self::Saturate
        )
    }
}

/// Finds the one of `known` that is called `text`, with `-` for `_` and in any case. The error is the one
/// whose name is most like it, if any is.
pub(crate) fn by_name<T: Copy>(
    known: &[T],
    name: impl Fn(T) -> &'static str,
    text: &str,
) -> Result<T, Option<T>> {
    let spelt = text.trim().to_lowercase().replace(['-', ' '], "_");
    if let Some(&found) = known.iter().find(|&&one| name(one) == spelt) {
        return Ok(found);
    }
    let likeness = |one: T| strsim::normalized_damerau_levenshtein(&spelt, name(one));
    let nearest = known.iter().copied();
    let nearest = nearest.max_by(|&a, &b| likeness(a).total_cmp(&likeness(b)));
    Err(nearest.filter(|&one| likeness(one) >= 0.4))
}
