use crate::error::Error;
use crate::parameters::Table;

pub(crate) const MIN_SIDE: usize = 8;
pub(crate) const MAX_SIDE: usize = 8192;

/// The size of every image in a call, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) height: usize,
    pub(crate) width: usize,
}

impl Size {
    pub(crate) fn new(height: usize, width: usize) -> Result<Self, Error> {
        let supported = MIN_SIDE..=MAX_SIDE;
        if supported.contains(&height) && supported.contains(&width) {
            Ok(Self { height, width })
        } else {
            Err(Error::ImageSize { height, width })
        }
    }

    pub(crate) fn shorter(self) -> usize {
        self.height.min(self.width)
    }

    pub(crate) fn pixels(self) -> usize {
        self.height * self.width
    }

    /// Bytes of one image, three to a pixel.
    pub(crate) fn bytes(self) -> usize {
        3 * self.pixels()
    }

    pub(crate) fn table(self) -> Table {
        Table::for_side(self.shorter())
    }
}
