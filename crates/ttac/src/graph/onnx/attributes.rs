//! Attributes of an operation by name, with their defaults.

use super::message::{Attribute, Node};

impl Node<'_> {
    /// Returns an attribute.
    pub fn attribute(&self, name: &str) -> Option<&Attribute<'_>> {
        let mut attributes = self.attributes.iter();
        attributes.find(|attribute| attribute.name == name)
    }

    /// Returns an integer.
    pub fn integer(&self, name: &str, default: i64) -> i64 {
        let found = self.attribute(name).and_then(|attribute| attribute.integer);
        found.unwrap_or(default)
    }

    /// Returns integers, if they are given.
    pub fn integers(&self, name: &str) -> Option<&[i64]> {
        let attribute = self.attribute(name)?;
        Some(&attribute.integers)
    }

    /// Returns a number, the one that was meant before it was rounded to single precision.
    pub fn float(&self, name: &str, default: f64) -> f64 {
        let found = self.attribute(name).and_then(|attribute| attribute.float);
        found.map_or(default, widen)
    }

    /// Returns a text.
    pub fn text(&self, name: &str, default: &str) -> String {
        let found = self
            .attribute(name)
            .and_then(|attribute| attribute.text.as_deref());
        let found = found.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        found.unwrap_or_else(|| default.to_owned())
    }

    /// Returns the name of an input that is not left out.
    pub fn input(&self, index: usize) -> Option<&str> {
        let name = self.inputs.get(index).map(String::as_str);
        name.filter(|name| !name.is_empty())
    }

    /// Names the operation in a message.
    pub fn describe(&self) -> String {
        let made = self.outputs.first().map_or("", String::as_str);
        let name = if self.name.is_empty() {
            made
        } else {
            &self.name
        };
        format!("node `{name}` ({})", self.op)
    }
}

/// Returns the shortest decimal number that single precision rounds to this: 1e-5 and not 9.999999747378752e-6, as networks
/// mean the former.
pub fn widen(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// Counts a negative axis from the end.
pub fn axis_of(axis: i64, rank: usize) -> Result<usize, String> {
    let counted = if axis < 0 { axis + rank as i64 } else { axis };
    let counted = usize::try_from(counted).ok().filter(|&axis| axis < rank);
    counted.ok_or_else(|| format!("axis {axis} of a value with {rank} axes"))
}
