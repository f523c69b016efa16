//! Small ONNX files, made byte by byte: a second writer, so that the library's own is not its only judge.

/// Writes an integer of seven bits per byte.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Writes a field that holds an integer.
pub fn integer(number: u64, value: i64) -> Vec<u8> {
    [varint(number << 3), varint(value as u64)].concat()
}

/// Writes a field that holds bytes, a text or a message.
pub fn bytes(number: u64, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let length = varint(content.len() as u64);
    [varint(number << 3 | 2), length, content.to_vec()].concat()
}

/// Writes an attribute of integers.
pub fn integers(name: &str, values: &[i64]) -> Vec<u8> {
    let values = values.iter().flat_map(|&value| integer(8, value));
    [bytes(1, name), values.collect(), integer(20, 7)].concat()
}

/// Writes an attribute of an integer.
pub fn flag(name: &str, value: i64) -> Vec<u8> {
    [bytes(1, name), integer(3, value), integer(20, 2)].concat()
}

/// Writes an operation.
pub fn node(op: &str, inputs: &[&str], outputs: &[&str], attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut content = Vec::new();
    content.extend(inputs.iter().flat_map(|name| bytes(1, name)));
    content.extend(outputs.iter().flat_map(|name| bytes(2, name)));
    content.extend(bytes(3, format!("the_{op}")));
    content.extend(bytes(4, op));
    content.extend(attributes.iter().flat_map(|attribute| bytes(5, attribute)));
    content
}

fn tensor(name: &str, shape: &[i64], element: i64, rest: &[u8]) -> Vec<u8> {
    let sizes = shape.iter().flat_map(|&size| integer(1, size));
    let sizes: Vec<u8> = sizes.collect();
    [&sizes, &integer(2, element), &bytes(8, name), rest].concat()
}

/// Writes a tensor of numbers, all of them as given by a function of their place.
pub fn floats(name: &str, shape: &[i64], value: impl Fn(usize) -> f32) -> Vec<u8> {
    let count = shape.iter().product::<i64>() as usize;
    let raw: Vec<u8> = (0..count).flat_map(|i| value(i).to_le_bytes()).collect();
    tensor(name, shape, 1, &bytes(9, raw))
}

/// Writes a list of integers, packed.
pub fn longs(name: &str, values: &[i64]) -> Vec<u8> {
    let packed: Vec<u8> = values.iter().flat_map(|&v| varint(v as u64)).collect();
    tensor(name, &[values.len() as i64], 7, &bytes(7, packed))
}

/// Writes a tensor whose values are in another file.
pub fn outside(name: &str, shape: &[i64], location: &str, offset: u64, length: u64) -> Vec<u8> {
    let entry = |key: &str, value: &str| bytes(13, [bytes(1, key), bytes(2, value)].concat());
    let rest = [
        entry("location", location),
        entry("offset", &offset.to_string()),
        entry("length", &length.to_string()),
        integer(14, 1),
    ];
    tensor(name, shape, 1, &rest.concat())
}

/// Writes what is known of an input or output; a size of 0 is called `batch`.
pub fn info(name: &str, shape: &[i64]) -> Vec<u8> {
    let size = |&size: &i64| match size {
        0 => bytes(1, bytes(2, "batch")),
        size => bytes(1, integer(1, size)),
    };
    let sizes: Vec<u8> = shape.iter().flat_map(size).collect();
    let kind = [integer(1, 1), bytes(2, sizes)].concat();
    [bytes(1, name), bytes(2, bytes(1, kind))].concat()
}

/// A file before it is written.
#[derive(Clone, Default)]
pub struct Model {
    /// The version of the set of operators.
    pub opset: i64,
    /// Operations.
    pub nodes: Vec<Vec<u8>>,
    /// Tensors.
    pub tensors: Vec<Vec<u8>>,
    /// Inputs.
    pub inputs: Vec<Vec<u8>>,
    /// Outputs.
    pub outputs: Vec<Vec<u8>>,
}

impl Model {
    /// Writes the file.
    pub fn bytes(&self) -> Vec<u8> {
        let lists = [
            (1, &self.nodes),
            (5, &self.tensors),
            (11, &self.inputs),
            (12, &self.outputs),
        ];
        let graph = lists.into_iter().flat_map(|(number, list)| {
            let list = list.iter();
            list.flat_map(move |content| bytes(number, content))
        });
        let graph: Vec<u8> = graph.collect();
        let opset = integer(2, self.opset);
        [integer(1, 8), bytes(7, graph), bytes(8, opset)].concat()
    }
}

/// A network of a convolution, a mean and a linear layer: `[batch, 3, 8, 8]` to `[batch, 5]`.
pub fn small() -> Model {
    Model {
        opset: 17,
        nodes: vec![
            node(
                "Conv",
                &["x", "conv.weight", "conv.bias"],
                &["y"],
                &[integers("pads", &[1, 1, 1, 1])],
            ),
            node("GlobalAveragePool", &["y"], &["mean"], &[]),
            node("Flatten", &["mean"], &["flat"], &[]),
            node(
                "Gemm",
                &["flat", "fc.weight", "fc.bias"],
                &["scores"],
                &[flag("transB", 1)],
            ),
        ],
        tensors: vec![
            floats("conv.weight", &[4, 3, 3, 3], |i| i as f32 / 50.0 - 1.0),
            floats("conv.bias", &[4], |i| i as f32),
            floats("fc.weight", &[5, 4], |i| i as f32 / 10.0),
            floats("fc.bias", &[5], |i| -(i as f32)),
        ],
        inputs: vec![info("x", &[0, 3, 8, 8])],
        outputs: vec![info("scores", &[0, 5])],
    }
}
