//! Where windows fit.

/// The largest kernel, stride and dilation of a window. Gradients spread the results by the stride, so that a large one makes much
/// memory of few results.
const MOST_PIXELS: usize = 1 << 12;

/// The window of a convolution or a pool along one axis.
pub(super) struct Window {
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    pub padding: [usize; 2],
    pub ceil: bool,
}

impl Window {
    /// Returns how often the window fits along an edge.
    pub fn places(&self, edge: usize) -> Result<usize, String> {
        non_zero(
            self.kernel * usize::from(self.stride > 0),
            "window or stride",
        )?;
        non_zero(self.dilation, "dilation")?;
        if [self.kernel, self.stride, self.dilation]
            .iter()
            .any(|&size| size > MOST_PIXELS)
        {
            return Err(format!(
                "the kernel, stride or dilation of its window is more than {MOST_PIXELS}"
            ));
        }
        let limit = 1 << 24;
        if edge > limit || self.padding.iter().any(|&padding| padding > limit) {
            return Err(format!("its image or padding is wider than {limit}"));
        }
        let span = (self.kernel - 1) * self.dilation + 1;
        // Windows that see nothing but padding are of no use, and a stride may hide how many there would be.
        if self.padding.iter().any(|&padding| padding > edge + span) {
            return Err(format!(
                "padding {:?} is wider than an edge of {edge} and a window of {span} pixels",
                self.padding
            ));
        }
        let padded = edge + self.padding[0] + self.padding[1];
        let Some(room) = padded.checked_sub(span) else {
            return Err(format!(
                "a window of {span} pixels does not fit an edge of {edge} with padding {:?}",
                self.padding
            ));
        };
        if !self.ceil {
            return Ok(room / self.stride + 1);
        }
        let places = room.div_ceil(self.stride) + 1;
        // PyTorch leaves out a last window that would begin in the padding behind the image.
        let outside = (places - 1) * self.stride >= edge + self.padding[0];
        Ok(places - usize::from(outside))
    }
}

fn non_zero(size: usize, what: &str) -> Result<(), String> {
    if size > 0 {
        return Ok(());
    }
    Err(format!("its {what} is 0"))
}
