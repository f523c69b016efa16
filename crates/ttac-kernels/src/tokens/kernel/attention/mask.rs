//! What is added to the scores of an attention, and which heads share it.

use super::shape::ScaledDotProductShape;
use crate::core::shape::{check_len, elements};

/// At most about so many sums of a mask's gradient are made at once, so that several cores have work to the end.
const TASKS: usize = 16;

/// What is added to the scores: a mask, or a bias for relative positions.
#[derive(Clone, Copy, Debug)]
pub struct AddedMask<'a> {
    /// The mask, `[images, heads, queries, tokens]`.
    pub values: &'a [f32],
    /// For how many images there is a mask. It divides the batch, and image `i` uses the mask `i % images`: 1 is one mask for all, and the windows of an image may have
    /// one each.
    pub images: usize,
    /// For how many heads there is a mask: 1, for all of them, or each.
    pub heads: usize,
}

impl AddedMask<'_> {
    pub(super) fn check(&self, shape: &ScaledDotProductShape) {
        assert!(
            shape.batch.is_multiple_of(self.images)
                && (self.heads == 1 || self.heads == shape.heads),
            "mask of an attention: expected one for all heads or each, and a number of images that divides the batch, found {} images and {} heads, for {shape:?}",
            self.images,
            self.heads
        );
        let sizes = [self.images, self.heads, shape.queries, shape.tokens];
        check_len("mask of an attention", self.values.len(), &sizes, shape);
    }

    /// Which mask an image and a head use.
    pub(super) fn index(&self, image: usize, head: usize) -> usize {
        image % self.images * self.heads + head % self.heads
    }

    /// Which images and heads share masks, for the sums of the gradient. There is at least one image.
    pub(super) fn sharing(&self, shape: &ScaledDotProductShape) -> Sharing {
        let masks = self.images * self.heads;
        let heads_each = shape.heads / self.heads;
        let members = shape.batch / self.images * heads_each;
        let groups = (TASKS / masks).clamp(1, members);
        let group = members.div_ceil(groups);
        let groups = members.div_ceil(group);
        let sizes = [groups, masks, shape.queries, shape.tokens];
        elements("gradient of a mask", &sizes);
        Sharing {
            images: self.images,
            heads: self.heads,
            heads_each,
            members,
            group,
            groups,
        }
    }
}

/// The images and heads that share a mask, in groups.
pub(super) struct Sharing {
    images: usize,
    heads: usize,
    /// How many heads of an image share a mask.
    heads_each: usize,
    /// How many pairs of an image and a head share a mask.
    members: usize,
    /// Pairs of a group, and how many groups there are. The number depends on the shape alone.
    group: usize,
    pub(super) groups: usize,
}

impl Sharing {
    /// How many sums there are, `[groups, masks]`.
    pub(super) fn sums(&self) -> usize {
        self.groups * self.images * self.heads
    }

    /// The images and heads of one sum, in their order.
    pub(super) fn members(&self, sum: usize) -> impl Iterator<Item = (usize, usize)> {
        let masks = self.images * self.heads;
        let (group, mask) = (sum / masks, sum % masks);
        let (image, head) = (mask / self.heads, mask % self.heads);
        let members = group * self.group..((group + 1) * self.group).min(self.members);
        members.map(move |member| {
            let image = member / self.heads_each * self.images + image;
            (image, member % self.heads_each * self.heads + head)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_and_head_belongs_to_one_sum_of_its_own_mask() {
        for (batch, heads, images, mask_heads) in [
            (6, 4, 1, 1),
            (6, 4, 3, 4),
            (6, 4, 6, 1),
            (40, 3, 4, 3),
            (1, 1, 1, 1),
            (50, 2, 25, 1),
        ] {
            let shape = ScaledDotProductShape {
                batch,
                heads,
                queries: 1,
                tokens: 1,
                width: 1,
                value_width: 1,
            };
            let values = vec![0.; images * mask_heads];
            let mask = AddedMask {
                values: &values,
                images,
                heads: mask_heads,
            };
            let sharing = mask.sharing(&shape);
            let mut seen = vec![0; batch * heads];
            for sum in 0..sharing.sums() {
                for (image, head) in sharing.members(sum) {
                    assert_eq!(mask.index(image, head), sum % (images * mask_heads));
                    seen[image * heads + head] += 1;
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "{shape:?}: {seen:?}");
        }
    }
}
