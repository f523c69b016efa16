//! The messages of an ONNX file, with the fields that matter here. Others are skipped, so that files of later versions can be
//! read. A graph inside an attribute is skipped as well, which bounds how deep messages nest.

use std::borrow::Cow;

use super::protobuf::{Fields, Result, Value, Writer};

/// The types of elements, by their numbers in the format.
pub mod element {
    /// Single precision.
    pub const FLOAT: i64 = 1;
    /// Unsigned bytes.
    pub const UINT8: i64 = 2;
    /// Signed bytes.
    pub const INT8: i64 = 3;
    /// Integers of 16 bits.
    pub const INT16: i64 = 5;
    /// Integers of 32 bits.
    pub const INT32: i64 = 6;
    /// Integers of 64 bits.
    pub const INT64: i64 = 7;
    /// Yes or no.
    pub const BOOL: i64 = 9;
    /// Half precision.
    pub const FLOAT16: i64 = 10;
    /// Double precision.
    pub const DOUBLE: i64 = 11;
    /// Brain floats.
    pub const BFLOAT16: i64 = 16;
}

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model<'a> {
    /// The version of the format.
    pub ir_version: i64,
    /// The program that wrote the file.
    pub producer: String,
    /// The sets of operators: domain, which is empty for ONNX's own, and version.
    pub opsets: Vec<(String, i64)>,
    /// The network.
    pub graph: Option<Graph<'a>>,
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph<'a> {
    /// Its name.
    pub name: String,
    /// The operations, in an order in which they can run.
    pub nodes: Vec<Node<'a>>,
    /// The tensors that belong to it.
    pub initialisers: Vec<Tensor<'a>>,
    /// What it reads. Old files list the initialisers here as well.
    pub inputs: Vec<ValueInfo>,
    /// What it makes.
    pub outputs: Vec<ValueInfo>,
    /// How many tensors it has that list only what is not zero.
    pub sparse: usize,
}

/// One operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node<'a> {
    /// The names of what it reads; empty where an input is left out.
    pub inputs: Vec<String>,
    /// The names of what it makes; empty where nobody wants an output.
    pub outputs: Vec<String>,
    /// Its name.
    pub name: String,
    /// What it does.
    pub op: String,
    /// The set its operator is from, empty for ONNX's own.
    pub domain: String,
    /// Its attributes.
    pub attributes: Vec<Attribute<'a>>,
    /// What the exporter wrote about it: keys and values.
    pub metadata: Vec<(String, String)>,
}

/// An attribute of an operation. Only what it holds is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attribute<'a> {
    /// Its name.
    pub name: String,
    /// A number.
    pub float: Option<f32>,
    /// An integer.
    pub integer: Option<i64>,
    /// A text.
    pub text: Option<Cow<'a, [u8]>>,
    /// A tensor.
    pub tensor: Option<Tensor<'a>>,
    /// Numbers.
    pub floats: Vec<f32>,
    /// Integers.
    pub integers: Vec<i64>,
}

/// A tensor with its values, or with where they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// The type of its elements, one of [`element`].
    pub element: i64,
    /// The values as they lie in memory, little-endian.
    pub raw: Option<Cow<'a, [u8]>>,
    /// The values of single precision.
    pub floats: Vec<f32>,
    /// The values of double precision.
    pub doubles: Vec<f64>,
    /// The values of 64 bits.
    pub longs: Vec<i64>,
    /// The values of at most 32 bits: also half precision, as its bits.
    pub integers: Vec<i64>,
    /// Whether the values are in another file.
    pub external: bool,
    /// Where in that file: keys and values.
    pub place: Vec<(String, String)>,
}

/// Describes an input or an output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueInfo {
    /// Its name.
    pub name: String,
    /// The type of its elements, one of [`element`]; 0 if it is no tensor.
    pub element: i64,
    /// Its shape, if it has one.
    pub shape: Option<Vec<Size>>,
}

/// One size of an input or an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    /// A number.
    Number(i64),
    /// A name for a size that may change; empty if it has none.
    Named(String),
}

impl<'a> Model<'a> {
    /// Reads a file.
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut model = Self::default();
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => model.ir_version = value.integer()?,
                (2, value) => model.producer = value.text()?,
                (7, value) => {
                    let mut graph = model.graph.take().unwrap_or_default();
                    graph.merge(value.bytes()?)?;
                    model.graph = Some(graph);
                }
                (8, value) => model.opsets.push(opset(value.bytes()?)?),
                _ => {}
            }
        }
        Ok(model)
    }

    /// Writes a file.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.integer(1, self.ir_version);
        writer.text(2, &self.producer);
        if let Some(graph) = &self.graph {
            writer.message(7, |writer| graph.encode(writer));
        }
        for (domain, version) in &self.opsets {
            writer.message(8, |writer| {
                writer.text(1, domain);
                writer.integer(2, *version);
            });
        }
        writer.finish()
    }
}

fn opset(bytes: &[u8]) -> Result<(String, i64)> {
    let mut found = (String::new(), 0);
    for field in Fields::of(bytes) {
        match field? {
            (1, value) => found.0 = value.text()?,
            (2, value) => found.1 = value.integer()?,
            _ => {}
        }
    }
    Ok(found)
}

fn entry(bytes: &[u8]) -> Result<(String, String)> {
    let mut found = (String::new(), String::new());
    for field in Fields::of(bytes) {
        match field? {
            (1, value) => found.0 = value.text()?,
            (2, value) => found.1 = value.text()?,
            _ => {}
        }
    }
    Ok(found)
}

impl<'a> Graph<'a> {
    fn merge(&mut self, bytes: &'a [u8]) -> Result<()> {
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => self.nodes.push(Node::decode(value.bytes()?)?),
                (2, value) => self.name = value.text()?,
                (5, value) => self.initialisers.push(Tensor::decode(value.bytes()?)?),
                (11, value) => self.inputs.push(ValueInfo::decode(value.bytes()?)?),
                (12, value) => self.outputs.push(ValueInfo::decode(value.bytes()?)?),
                (15, _) => self.sparse += 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn encode(&self, writer: &mut Writer) {
        for node in &self.nodes {
            writer.message(1, |writer| node.encode(writer));
        }
        writer.text(2, &self.name);
        for tensor in &self.initialisers {
            writer.message(5, |writer| tensor.encode(writer));
        }
        for (number, infos) in [(11, &self.inputs), (12, &self.outputs)] {
            for info in infos {
                writer.message(number, |writer| info.encode(writer));
            }
        }
    }
}

impl<'a> Node<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut node = Self::default();
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => node.inputs.push(value.text()?),
                (2, value) => node.outputs.push(value.text()?),
                (3, value) => node.name = value.text()?,
                (4, value) => node.op = value.text()?,
                (5, value) => node.attributes.push(Attribute::decode(value.bytes()?)?),
                (7, value) => node.domain = value.text()?,
                (9, value) => node.metadata.push(entry(value.bytes()?)?),
                _ => {}
            }
        }
        Ok(node)
    }

    fn encode(&self, writer: &mut Writer) {
        // An input that is left out is an empty text, which has to be written.
        for (number, names) in [(1, &self.inputs), (2, &self.outputs)] {
            for name in names {
                writer.bytes(number, name.as_bytes());
            }
        }
        writer.text(3, &self.name);
        writer.text(4, &self.op);
        for attribute in &self.attributes {
            writer.message(5, |writer| attribute.encode(writer));
        }
        writer.text(7, &self.domain);
        for (key, value) in &self.metadata {
            writer.message(9, |writer| {
                writer.text(1, key);
                writer.text(2, value);
            });
        }
    }
}

impl<'a> Attribute<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut attribute = Self::default();
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => attribute.name = value.text()?,
                (2, value) => attribute.float = Some(value.float()?),
                (3, value) => attribute.integer = Some(value.integer()?),
                (4, value) => attribute.text = Some(value.bytes()?.into()),
                (5, value) => attribute.tensor = Some(Tensor::decode(value.bytes()?)?),
                (7, value) => value.floats(&mut attribute.floats)?,
                (8, value) => value.integers(&mut attribute.integers)?,
                _ => {}
            }
        }
        Ok(attribute)
    }

    /// Writes the one thing that the attribute holds, and of what type it is.
    fn encode(&self, writer: &mut Writer) {
        writer.text(1, &self.name);
        let kind = if let Some(value) = self.float {
            writer.float(2, value);
            1
        } else if let Some(value) = self.integer {
            writer.integer(3, value);
            2
        } else if let Some(text) = &self.text {
            writer.bytes(4, text);
            3
        } else if let Some(tensor) = &self.tensor {
            writer.message(5, |writer| tensor.encode(writer));
            4
        } else if self.floats.is_empty() {
            for &value in &self.integers {
                writer.integer(8, value);
            }
            7
        } else {
            for &value in &self.floats {
                writer.float(7, value);
            }
            6
        };
        writer.integer(20, kind);
    }
}

impl<'a> Tensor<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut tensor = Self::default();
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => value.integers(&mut tensor.shape)?,
                (2, value) => tensor.element = value.integer()?,
                (4, value) => value.floats(&mut tensor.floats)?,
                (5, value) => value.integers(&mut tensor.integers)?,
                (7, value) => value.integers(&mut tensor.longs)?,
                (8, value) => tensor.name = value.text()?,
                (9, value) => tensor.raw = Some(value.bytes()?.into()),
                (10, value) => value.doubles(&mut tensor.doubles)?,
                (13, value) => tensor.place.push(entry(value.bytes()?)?),
                (14, value) => tensor.external = value.integer()? == 1,
                _ => {}
            }
        }
        Ok(tensor)
    }

    /// Writes the tensor. Values are written raw, or as the place where they are.
    fn encode(&self, writer: &mut Writer) {
        for &size in &self.shape {
            writer.integer(1, size);
        }
        writer.integer(2, self.element);
        writer.text(8, &self.name);
        if let Some(raw) = &self.raw {
            writer.bytes(9, raw);
        }
        for (key, value) in &self.place {
            writer.message(13, |writer| {
                writer.text(1, key);
                writer.text(2, value);
            });
        }
        if self.external {
            writer.integer(14, 1);
        }
    }
}

impl ValueInfo {
    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut info = Self::default();
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => info.name = value.text()?,
                (2, value) => info.merge_type(value)?,
                _ => {}
            }
        }
        Ok(info)
    }

    fn merge_type(&mut self, value: Value<'_>) -> Result<()> {
        for field in Fields::of(value.bytes()?) {
            let (1, tensor) = field? else { continue };
            for field in Fields::of(tensor.bytes()?) {
                match field? {
                    (1, value) => self.element = value.integer()?,
                    (2, value) => {
                        let shape = self.shape.get_or_insert_default();
                        for field in Fields::of(value.bytes()?) {
                            if let (1, size) = field? {
                                shape.push(Size::decode(size.bytes()?)?);
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn encode(&self, writer: &mut Writer) {
        let size = |writer: &mut Writer, size: &Size| match size {
            Size::Number(number) => writer.integer(1, *number),
            Size::Named(name) => writer.text(2, name),
        };
        writer.text(1, &self.name);
        writer.message(2, |writer| {
            writer.message(1, |writer| {
                writer.integer(1, self.element);
                if let Some(shape) = &self.shape {
                    writer.message(2, |writer| {
                        for one in shape {
                            writer.message(1, |writer| size(writer, one));
                        }
                    });
                }
            });
        });
    }
}

impl Size {
    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut size = Self::Named(String::new());
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => size = Self::Number(value.integer()?),
                (2, value) => size = Self::Named(value.text()?),
                _ => {}
            }
        }
        Ok(size)
    }
}
