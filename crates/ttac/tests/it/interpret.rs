//! A graph computed in the plainest way, in double precision: what lowering is measured with. It shares no code with the library
//! beyond the description of graphs.

use std::collections::BTreeMap;

use ttac::graph::{Function, Graph, Lowered, Node, Op, Operand, Pool, Reduction, ValueId};

/// Numbers in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

impl Numbers {
    pub fn new(shape: &[usize], values: Vec<f64>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        Self {
            shape: shape.to_vec(),
            values,
        }
    }

    /// Computes every element from its index.
    fn from_fn(shape: &[usize], mut element: impl FnMut(&[usize]) -> f64) -> Self {
        let count = shape.iter().product::<usize>();
        let mut index = vec![0; shape.len()];
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            values.push(element(&index));
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                if index[axis] < shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        Self::new(shape, values)
    }

    fn at(&self, index: &[usize]) -> f64 {
        let place = index
            .iter()
            .zip(&self.shape)
            .fold(0, |place, (i, size)| place * size + i);
        self.values[place]
    }

    /// Returns an element of a larger shape to which these numbers are broadcast.
    fn broadcast(&self, index: &[usize]) -> f64 {
        let own = &index[index.len() - self.shape.len()..];
        let own: Vec<usize> = own
            .iter()
            .zip(&self.shape)
            .map(|(&i, &size)| if size == 1 { 0 } else { i })
            .collect();
        self.at(&own)
    }
}

/// Computes all values of a graph for a batch of images.
pub fn run(lowered: &Lowered, images: Numbers) -> BTreeMap<ValueId, Numbers> {
    let graph = &lowered.graph;
    let batch = images.shape[0];
    let mut values = BTreeMap::from([(graph.input, images)]);
    for node in &graph.nodes {
        let inputs: Vec<Numbers> = node
            .inputs
            .iter()
            .map(|operand| match operand {
                Operand::Value(value) => values[value].clone(),
                Operand::Tensor(tensor) => {
                    let info = graph.tensor(*tensor);
                    let data = lowered.tensors[&info.name].try_to_vec::<f32>().unwrap();
                    let data = data.into_iter().map(f64::from).collect();
                    Numbers::new(&info.shape, data)
                }
                Operand::Scalar(number) => Numbers::new(&[], vec![*number]),
            })
            .collect();
        let shape: Vec<usize> = graph
            .shape(node.output)
            .iter()
            .map(|dim| dim.at(batch))
            .collect();
        let result = compute(graph, node, &inputs, &shape);
        assert_eq!(result.shape, shape, "{:?}", node.op);
        values.insert(node.output, result);
    }
    values
}

fn compute(graph: &Graph, node: &Node, inputs: &[Numbers], shape: &[usize]) -> Numbers {
    let x = &inputs[0];
    let pair = |f: fn(f64, f64) -> f64| {
        Numbers::from_fn(shape, |i| f(inputs[0].broadcast(i), inputs[1].broadcast(i)))
    };
    match &node.op {
        Op::Conv2d { .. } => convolution(&node.op, inputs, shape),
        Op::BatchNorm { epsilon, .. } => Numbers::from_fn(shape, |i| {
            let [weight, bias, mean, var] = [1, 2, 3, 4].map(|at| inputs[at].values[i[1]]);
            (x.at(i) - mean) / (var + epsilon).sqrt() * weight + bias
        }),
        Op::Standardise { epsilon } => normalised(inputs, *epsilon, |i| i[1], |i| i[1], shape),
        Op::LayerNorm { epsilon } => {
            let last = shape.len() - 1;
            let row = |i: &[usize]| i[..last].iter().zip(shape).fold(0, |p, (i, s)| p * s + i);
            normalised(inputs, *epsilon, row, |i| i[last], shape)
        }
        Op::GroupNorm { groups, epsilon } => {
            let size = shape[1] / groups;
            let group = |i: &[usize]| i[0] * groups + i[1] / size;
            normalised(inputs, *epsilon, group, |i| i[1], shape)
        }
        Op::Linear => Numbers::from_fn(shape, |i| {
            let last = i.len() - 1;
            let mut at = i.to_vec();
            let mut sum = inputs.get(2).map_or(0.0, |bias| bias.values[i[last]]);
            for k in 0..inputs[1].shape[1] {
                at[last] = k;
                sum += x.at(&at) * inputs[1].at(&[i[last], k]);
            }
            sum
        }),
        Op::MatMul => product(x, &inputs[1], shape, false),
        Op::Attention { scale } => attention(inputs, *scale, shape),
        Op::Softmax { axis } => softmax(x, *axis),
        Op::Apply(function) => Numbers::from_fn(shape, |i| apply(*function, x.at(i))),
        Op::Add => pair(|a, b| a + b),
        Op::Sub => pair(|a, b| a - b),
        Op::Mul => pair(|a, b| a * b),
        Op::Div => pair(|a, b| a / b),
        Op::Reduce { how, axes, keep } => reduce(x, *how, axes, *keep, shape),
        Op::MaxPool(pool) => windows(x, pool, shape, |inside, _| {
            inside.iter().copied().fold(f64::NEG_INFINITY, f64::max)
        }),
        Op::AveragePool {
            pool,
            count_padding,
            divisor,
        } => windows(x, pool, shape, |inside, padded| {
            let count = if *count_padding { padded } else { inside.len() };
            inside.iter().sum::<f64>() / divisor.unwrap_or(count) as f64
        }),
        Op::Reshape { .. } => Numbers::new(shape, x.values.clone()),
        Op::Permute { axes } => Numbers::from_fn(shape, |i| {
            let mut from = vec![0; i.len()];
            for (to, &axis) in axes.iter().enumerate() {
                from[axis] = i[to];
            }
            x.at(&from)
        }),
        Op::Slice {
            axis, start, step, ..
        } => moved(x, shape, *axis, |i| start + i * step),
        Op::Gather { axis, indices, .. } => {
            let list = &graph.indices[*indices];
            moved(x, shape, *axis, |i| list[i] as usize)
        }
        Op::Concat { axis } => Numbers::from_fn(shape, |i| {
            let mut from = i.to_vec();
            for part in inputs {
                if from[*axis] < part.shape[*axis] {
                    return part.at(&from);
                }
                from[*axis] -= part.shape[*axis];
            }
            unreachable!("an index behind all parts")
        }),
        Op::Pad { padding, value } => Numbers::from_fn(shape, |i| {
            let from: Option<Vec<usize>> = i
                .iter()
                .zip(padding)
                .zip(&x.shape)
                .map(|((&i, sides), &size)| i.checked_sub(sides[0]).filter(|&i| i < size))
                .collect();
            from.map_or(*value, |from| x.at(&from))
        }),
        Op::Expand { .. } => Numbers::from_fn(shape, |i| x.broadcast(i)),
        Op::Resize { size } => Numbers::from_fn(shape, |i| {
            let row = i[2] * x.shape[2] / size[0];
            x.at(&[i[0], i[1], row, i[3] * x.shape[3] / size[1]])
        }),
        Op::Dropout { .. } => x.clone(),
    }
}

fn moved(x: &Numbers, shape: &[usize], axis: usize, from: impl Fn(usize) -> usize) -> Numbers {
    Numbers::from_fn(shape, |i| {
        let mut at = i.to_vec();
        at[axis] = from(i[axis]);
        x.at(&at)
    })
}

fn convolution(op: &Op, inputs: &[Numbers], shape: &[usize]) -> Numbers {
    let Op::Conv2d {
        stride,
        padding,
        dilation,
        groups,
    } = op
    else {
        unreachable!("called for convolutions");
    };
    let (x, weight) = (&inputs[0], &inputs[1]);
    let (read, made) = (weight.shape[1], weight.shape[0] / groups);
    Numbers::from_fn(shape, |i| {
        let mut sum = inputs.get(2).map_or(0.0, |bias| bias.values[i[1]]);
        let first = i[1] / made * read;
        for c in 0..read {
            for row in 0..weight.shape[2] {
                for column in 0..weight.shape[3] {
                    let y = (i[2] * stride[0] + row * dilation[0]).checked_sub(padding[0][0]);
                    let z = (i[3] * stride[1] + column * dilation[1]).checked_sub(padding[1][0]);
                    if let (Some(y), Some(z)) = (y, z)
                        && y < x.shape[2]
                        && z < x.shape[3]
                    {
                        sum += x.at(&[i[0], first + c, y, z]) * weight.at(&[i[1], c, row, column]);
                    }
                }
            }
        }
        sum
    })
}

/// Normalises groups of elements, then scales and shifts each by its channel.
fn normalised(
    inputs: &[Numbers],
    epsilon: f64,
    group: impl Fn(&[usize]) -> usize,
    channel: impl Fn(&[usize]) -> usize,
    shape: &[usize],
) -> Numbers {
    let x = &inputs[0];
    let mut groups: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    Numbers::from_fn(shape, |i| {
        groups.entry(group(i)).or_default().push(x.at(i));
        0.0
    });
    let moments = |values: &Vec<f64>| {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let var = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        (mean, var)
    };
    let moments: BTreeMap<usize, (f64, f64)> = groups
        .iter()
        .map(|(&group, values)| (group, moments(values)))
        .collect();
    Numbers::from_fn(shape, |i| {
        let (mean, var) = moments[&group(i)];
        let weight = inputs
            .get(1)
            .map_or(1.0, |weight| weight.values[channel(i)]);
        let bias = inputs.get(2).map_or(0.0, |bias| bias.values[channel(i)]);
        (x.at(i) - mean) / (var + epsilon).sqrt() * weight + bias
    })
}

fn product(a: &Numbers, b: &Numbers, shape: &[usize], turned: bool) -> Numbers {
    let inner = a.shape[a.shape.len() - 1];
    let last = shape.len() - 1;
    Numbers::from_fn(shape, |i| {
        let (mut left, mut right) = (i.to_vec(), i.to_vec());
        let terms = (0..inner).map(|k| {
            left[last] = k;
            if turned {
                (right[last - 1], right[last]) = (i[last], k);
            } else {
                right[last - 1] = k;
            }
            a.broadcast(&left) * b.broadcast(&right)
        });
        terms.sum()
    })
}

fn softmax(x: &Numbers, axis: usize) -> Numbers {
    Numbers::from_fn(&x.shape, |i| {
        let mut at = i.to_vec();
        let mut row = Vec::new();
        for k in 0..x.shape[axis] {
            at[axis] = k;
            row.push(x.at(&at));
        }
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|v| (v - most).exp()).sum();
        (x.at(i) - most).exp() / sum
    })
}

fn attention(inputs: &[Numbers], scale: f64, shape: &[usize]) -> Numbers {
    let [q, k, v] = [&inputs[0], &inputs[1], &inputs[2]];
    let scores = [shape[0], shape[1], shape[2], k.shape[2]];
    let products = product(q, k, &scores, true);
    let scores = Numbers::from_fn(&scores, |i| {
        let mask = inputs.get(3).map_or(0.0, |mask| mask.broadcast(i));
        products.at(i) * scale + mask
    });
    product(&softmax(&scores, 3), v, shape, false)
}

fn reduce(x: &Numbers, how: Reduction, axes: &[usize], keep: bool, shape: &[usize]) -> Numbers {
    let mut groups: BTreeMap<Vec<usize>, Vec<f64>> = BTreeMap::new();
    Numbers::from_fn(&x.shape, |i| {
        let kept = (0..i.len()).filter(|axis| keep || !axes.contains(axis));
        let kept = kept.map(|axis| if axes.contains(&axis) { 0 } else { i[axis] });
        groups.entry(kept.collect()).or_default().push(x.at(i));
        0.0
    });
    Numbers::from_fn(shape, |i| {
        let group = &groups[i];
        match how {
            Reduction::Mean => group.iter().sum::<f64>() / group.len() as f64,
            Reduction::Sum => group.iter().sum(),
            Reduction::Maximum => group.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Reduction::Euclidean => group.iter().map(|v| v * v).sum::<f64>().sqrt(),
        }
    })
}

/// Visits windows: what lies inside of the image, and how many places lie inside of the image with its padding.
fn windows(
    x: &Numbers,
    pool: &Pool,
    shape: &[usize],
    of: impl Fn(&[f64], usize) -> f64,
) -> Numbers {
    Numbers::from_fn(shape, |i| {
        let (mut inside, mut padded) = (Vec::new(), 0);
        for row in 0..pool.kernel[0] {
            for column in 0..pool.kernel[1] {
                let at = [row, column];
                let place = [0, 1].map(|a| i[a + 2] * pool.stride[a] + at[a] * pool.dilation[a]);
                let edge = |a: usize| x.shape[a + 2] + 2 * pool.padding[a];
                padded += usize::from(place[0] < edge(0) && place[1] < edge(1));
                let own = [0, 1].map(|a| place[a].checked_sub(pool.padding[a]));
                if let [Some(y), Some(z)] = own
                    && y < x.shape[2]
                    && z < x.shape[3]
                {
                    inside.push(x.at(&[i[0], i[1], y, z]));
                }
            }
        }
        of(&inside, padded)
    })
}

fn apply(function: Function, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    match function {
        Function::Relu => x.max(0.0),
        Function::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Function::GeluTanh => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * x * (1.0 + (root * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Function::Sigmoid => sigmoid(x),
        Function::Silu => x * sigmoid(x),
        Function::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Function::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Function::LeakyRelu { slope } => x.max(0.0) + slope * x.min(0.0),
        Function::Elu { alpha } => x.max(0.0) + alpha * x.min(0.0).exp_m1(),
        Function::Mish => x * softplus(x).tanh(),
        Function::Softplus => softplus(x),
        Function::Clip { min, max } => x.max(min).min(max),
        Function::Tanh => x.tanh(),
        Function::Exp => x.exp(),
        Function::Log => x.ln(),
        Function::Sqrt => x.sqrt(),
        Function::Sin => x.sin(),
        Function::Cos => x.cos(),
        Function::Erf => erf(x),
        Function::Abs => x.abs(),
        Function::Power { exponent } => x.powf(exponent),
    }
}

/// The error function by its series, exact to rounding for the arguments of small networks; beyond 5 it is 1 to 1e-11.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}
