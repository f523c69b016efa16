//! The functions that can be lowered: one row for each, without overloads and without the underscore of in-place variants.

use super::arguments::{Outcome, Scope};
use super::{
    convolutions as conv, creators, elementwise as each, extend, inplace, norms, products,
    rearrange, reductions, unfold,
};

/// How a function is lowered.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// The function's name.
    pub function: &'static str,
    /// What it becomes, in the words of [`Op`](crate::graph::Op).
    pub becomes: &'static str,
    /// Makes its nodes.
    pub lower: fn(&mut Scope<'_, '_>) -> Outcome,
}

/// Writes rows as `name => "what it becomes", lowering;`.
macro_rules! rows {
    ($($function:literal => $becomes:literal, $lower:expr;)*) => {
        &[$(Row { function: $function, becomes: $becomes, lower: $lower }),*]
    };
}

/// Everything that can be lowered, in the order of names within groups.
pub(super) const TABLE: &[Row] = rows! {
    "conv1d" => "reshape, conv2d, reshape", conv::conv1d;
    "conv2d" => "conv2d", conv::convolution;
    "convolution" => "conv2d", conv::convolution;
    "_convolution" => "conv2d", conv::convolution;
    "max_pool2d" => "max-pool", conv::max_pool;
    "max_pool2d_with_indices" => "max-pool", conv::max_pool;
    "avg_pool2d" => "average-pool", conv::average_pool;
    "adaptive_avg_pool1d" => "reduce", conv::adaptive_average_row;
    "adaptive_avg_pool2d" => "reduce, average-pool or resize", conv::adaptive_average_pool;
    "_adaptive_avg_pool2d" => "reduce, average-pool or resize", conv::adaptive_average_pool;
    "adaptive_max_pool2d" => "reduce, max-pool or resize", conv::adaptive_max_pool;
    "im2col" => "pad, gather, reshape, permute", unfold::columns;
    "col2im" => "reshape, permute, mat-mul with constants", unfold::images;
    "upsample_nearest2d" => "resize or gather", conv::upsample_nearest;

    "batch_norm" => "batch-norm; standardise for weights", norms::batch_norm;
    "_native_batch_norm_legit_no_training" => "batch-norm", norms::batch_norm;
    "native_batch_norm" => "batch-norm; standardise for weights", norms::batch_norm;
    "_native_batch_norm_legit" => "refused: training", norms::training_norm;
    "_native_batch_norm_legit_functional" => "refused: training", norms::training_norm;
    "_batch_norm_with_update" => "refused: training", norms::training_norm;
    "_batch_norm_with_update_functional" => "refused: training", norms::training_norm;
    "_batch_norm_no_update" => "batch-norm", norms::batch_norm;
    "layer_norm" => "layer-norm", norms::layer_norm;
    "native_layer_norm" => "layer-norm", norms::layer_norm;
    "group_norm" => "group-norm", norms::group_norm;
    "native_group_norm" => "group-norm", norms::group_norm;
    "instance_norm" => "group-norm", norms::instance_norm;
    "dropout" => "dropout", norms::dropout;
    "native_dropout" => "dropout", norms::dropout;
    "feature_dropout" => "nothing", norms::other_dropout;
    "alpha_dropout" => "nothing", norms::other_dropout;
    "feature_alpha_dropout" => "nothing", norms::other_dropout;
    "bernoulli" => "refused: training", norms::training_only;
    "rand" => "refused: training", norms::training_only;
    "rand_like" => "refused: training", norms::training_only;
    "randn" => "refused: training", norms::training_only;
    "randn_like" => "refused: training", norms::training_only;

    "linear" => "linear", products::linear;
    "addmm" => "linear, or mat-mul and add", products::addmm;
    "baddbmm" => "mat-mul and add", products::addmm;
    "mm" => "linear or mat-mul", products::matmul;
    "bmm" => "mat-mul", products::matmul;
    "matmul" => "linear or mat-mul", products::matmul;
    "einsum" => "permute, reshape, mat-mul", products::einsum;
    "scaled_dot_product_attention" => "attention", products::attention;
    "_scaled_dot_product_flash_attention_for_cpu" => "attention", products::attention;
    "_scaled_dot_product_efficient_attention" => "attention", products::attention;
    "softmax" => "softmax", each::softmax;
    "_softmax" => "softmax", each::softmax;
    "log_softmax" => "softmax, log", each::log_softmax;
    "_log_softmax" => "softmax, log", each::log_softmax;

    "relu" => "relu", each::relu;
    "relu6" => "clip", each::relu6;
    "hardtanh" => "clip", each::hardtanh;
    "clamp" => "clip", each::clamp;
    "clip" => "clip", each::clamp;
    "clamp_min" => "clip", each::clamp;
    "clamp_max" => "clip", each::clamp;
    "gelu" => "gelu or gelu-tanh", each::gelu;
    "sigmoid" => "sigmoid", each::sigmoid;
    "silu" => "silu", each::silu;
    "hardswish" => "hard-swish", each::hardswish;
    "hardsigmoid" => "hard-sigmoid", each::hardsigmoid;
    "leaky_relu" => "leaky-relu", each::leaky_relu;
    "prelu" => "relu, clip, mul, add", each::prelu;
    "_prelu_kernel" => "relu, clip, mul, add", each::prelu;
    "elu" => "elu", each::elu;
    "selu" => "elu, mul", each::selu;
    "mish" => "mish", each::mish;
    "softplus" => "softplus", each::softplus;
    "log_sigmoid" => "mul, softplus, mul", each::log_sigmoid;
    "glu" => "slice, sigmoid, mul", each::glu;
    "tanh" => "tanh", each::tanh;
    "exp" => "exp", each::exp;
    "log" => "log", each::log;
    "log2" => "log, mul", each::log2;
    "sqrt" => "sqrt", each::sqrt;
    "rsqrt" => "power", each::rsqrt;
    "reciprocal" => "power", each::reciprocal;
    "square" => "power", each::square;
    "pow" => "power, or mul and exp", each::pow;
    "sin" => "sin", each::sin;
    "cos" => "cos", each::cos;
    "erf" => "erf", each::erf;
    "abs" => "abs", each::abs;
    "neg" => "mul", each::negate;
    "add" => "add", each::add;
    "sub" => "sub", each::sub;
    "subtract" => "sub", each::sub;
    "rsub" => "sub", each::reversed_sub;
    "mul" => "mul", each::mul;
    "multiply" => "mul", each::mul;
    "div" => "div", each::div;
    "divide" => "div", each::div;
    "true_divide" => "div", each::div;
    "addcmul" => "mul, add", each::addcmul;
    "addcdiv" => "div, add", each::addcdiv;
    "lerp" => "sub, mul, add", each::lerp;
    "maximum" => "clip, with a number", each::maximum;
    "minimum" => "clip, with a number", each::minimum;
    "where" => "mul, add, with a constant condition", each::choose;
    "masked_fill" => "mul, add, with a constant mask", each::masked_fill;

    "mean" => "reduce", reductions::mean;
    "sum" => "reduce", reductions::sum;
    "amax" => "reduce", reductions::maximum;
    "max" => "reduce", reductions::maximum;
    "linalg_vector_norm" => "reduce", reductions::vector_norm;
    "norm" => "reduce", reductions::vector_norm;
    "var" => "reduce, sub, power, mul", reductions::variance;
    "var_mean" => "reduce, sub, power, mul", reductions::variance_and_mean;
    "std" => "reduce, sub, power, mul, sqrt", reductions::deviation;

    "view" => "reshape", rearrange::view;
    "_unsafe_view" => "reshape", rearrange::view;
    "reshape" => "reshape", rearrange::view;
    "view_as" => "reshape", rearrange::view_as;
    "reshape_as" => "reshape", rearrange::view_as;
    "flatten" => "reshape", rearrange::flatten;
    "unflatten" => "reshape", rearrange::unflatten;
    "squeeze" => "reshape", rearrange::squeeze;
    "unsqueeze" => "reshape", rearrange::unsqueeze;
    "permute" => "permute", rearrange::permute;
    "transpose" => "permute", rearrange::transpose;
    "swapaxes" => "permute", rearrange::transpose;
    "swapdims" => "permute", rearrange::transpose;
    "t" => "permute", rearrange::transpose;
    "movedim" => "permute", rearrange::move_axes;
    "slice" => "slice", rearrange::slice;
    "narrow" => "slice", rearrange::narrow;
    "select" => "slice, reshape", rearrange::select;
    "unbind" => "slice, reshape", rearrange::unbind;
    "split" => "slice", rearrange::split;
    "split_with_sizes" => "slice", rearrange::split;
    "chunk" => "slice", rearrange::chunk;
    "cat" => "concat", rearrange::concat;
    "concat" => "concat", rearrange::concat;
    "stack" => "reshape, concat", rearrange::stack;
    "roll" => "slice, concat", rearrange::roll;
    "flip" => "gather", rearrange::flip;
    "pad" => "pad", extend::pad;
    "constant_pad_nd" => "pad", extend::pad;
    "expand" => "expand", extend::expand;
    "expand_as" => "expand", extend::expand_as;
    "repeat" => "expand or concat", extend::repeat;
    "repeat_interleave" => "gather", extend::repeat_interleave;
    "index" => "gather, reshape, with constant indices", extend::index;
    "index_select" => "gather, with constant indices", extend::index_select;
    "embedding" => "gather, with constant indices", extend::index_select;
    "pixel_shuffle" => "reshape, permute, reshape", rearrange::pixel_shuffle;
    "pixel_unshuffle" => "reshape, permute, reshape", rearrange::pixel_unshuffle;
    "channel_shuffle" => "reshape, permute, reshape", rearrange::channel_shuffle;
    "native_channel_shuffle" => "reshape, permute, reshape", rearrange::channel_shuffle;

    "alias" => "nothing", rearrange::same;
    "clone" => "nothing", rearrange::copy;
    "contiguous" => "nothing", rearrange::same;
    "detach" => "nothing", rearrange::same;
    "lift_fresh" => "nothing", rearrange::same;
    "lift_fresh_copy" => "nothing", rearrange::copy;
    "to" => "nothing", rearrange::convert;
    "_to_copy" => "nothing", rearrange::convert;
    "type_as" => "nothing", rearrange::same;

    "zeros" => "a constant", creators::zeros;
    "ones" => "a constant", creators::ones;
    "full" => "a constant", creators::filled;
    "empty" => "a constant", creators::zeros;
    "new_zeros" => "a constant", creators::zeros;
    "new_ones" => "a constant", creators::ones;
    "new_full" => "a constant", creators::filled;
    "new_empty" => "a constant", creators::zeros;
    "zeros_like" => "a constant", creators::zeros_like;
    "ones_like" => "a constant", creators::ones_like;
    "full_like" => "a constant", creators::filled_like;
    "empty_like" => "a constant", creators::zeros_like;
    "fill" => "a constant", creators::fill;
    "zero" => "a constant", creators::zero;
    "copy" => "a constant", creators::copied;
    "scalar_tensor" => "a constant", creators::scalar_tensor;
    "arange" => "a constant", creators::arange;
    "linspace" => "a constant", creators::linspace;
    "meshgrid" => "constants", creators::meshgrid;
    "triu" => "a constant, of a constant", creators::upper;
    "tril" => "a constant, of a constant", creators::lower;
    "cumsum" => "a constant, of a constant", reductions::running_sum;
    "eq" => "a constant, of constants", each::eq;
    "ne" => "a constant, of constants", each::ne;
    "lt" => "a constant, of constants", each::lt;
    "le" => "a constant, of constants", each::le;
    "gt" => "a constant, of constants", each::gt;
    "ge" => "a constant, of constants", each::ge;
    "logical_and" => "a constant, of constants", each::logical_and;
    "bitwise_and" => "a constant, of constants", each::logical_and;
    "__and__" => "a constant, of constants", each::logical_and;
    "logical_or" => "a constant, of constants", each::logical_or;
    "bitwise_or" => "a constant, of constants", each::logical_or;
    "__or__" => "a constant, of constants", each::logical_or;
    "logical_not" => "a constant, of a constant", each::logical_not;
    "bitwise_not" => "a constant, of a constant", each::bitwise_not;
    "floor_divide" => "a constant, of constants", each::floor_divide;
    "remainder" => "a constant, of constants", each::remainder;
    "floor" => "a constant, of a constant", each::floor;
    "ceil" => "a constant, of a constant", each::ceil;
    "round" => "a constant, of a constant", each::round;
    "sign" => "a constant, of a constant", each::sign;

    "sym_size" => "an integer", creators::size;
    "_operator.mul" => "an integer", creators::multiply;
    "_operator.add" => "an integer", creators::add;
    "_operator.sub" => "an integer", creators::subtract;
    "_operator.floordiv" => "an integer", creators::divide;
    "_assert_tensor_metadata" => "nothing", creators::nothing;
    "_assert_scalar" => "nothing", creators::nothing;
    "_assert_async" => "nothing", creators::nothing;
    "sym_constrain_range" => "nothing", creators::nothing;
    "sym_constrain_range_for_size" => "nothing", creators::nothing;
    "_operator.ge" => "nothing", creators::nothing;
    "_operator.le" => "nothing", creators::nothing;
    "_operator.eq" => "nothing", creators::nothing;
    "_operator.ne" => "nothing", creators::nothing;
    "_operator.gt" => "nothing", creators::nothing;
    "_operator.lt" => "nothing", creators::nothing;
};

/// The functions that can be lowered, without overloads and without the underscore of in-place variants, and what each becomes.
pub const SUPPORTED: &[(&str, &str)] = &{
    let mut names = [("", ""); TABLE.len()];
    let mut row = 0;
    while row < names.len() {
        names[row] = (TABLE[row].function, TABLE[row].becomes);
        row += 1;
    }
    names
};

/// Finds the row of a target such as `aten.add_.Tensor`. What depends on more than the function is told by the row itself.
pub(super) fn find(target: &str) -> Option<&'static Row> {
    // `upsample_nearest2d.vec` and `.default` differ in arguments alone, and so do all overloads we know.
    let (function, _, _) = inplace::parts(target);
    TABLE.iter().find(|row| row.function == function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_one_row() {
        let mut names: Vec<&str> = SUPPORTED.iter().map(|(function, _)| *function).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn overloads_and_in_place_variants_have_the_row_of_their_function() {
        for target in ["aten.add.Tensor", "aten.add_.Scalar", "aten.add.default"] {
            assert_eq!(find(target).unwrap().function, "add");
        }
        assert!(find("aten.fft_fft.default").is_none());
        assert!(find("higher_order.wrap_with_autocast").is_none());
    }
}
