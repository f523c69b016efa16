//! Plain values between Python and the library, by way of JSON.

use pyo3::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::errors::invalid;

/// Reads numbers, words, lists and dictionaries; NumPy's numbers and paths too.
pub fn to_json(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let module = value.py().import("ttac._plain")?;
    let text: String = module.call_method1("to_json", (value,))?.extract()?;
    serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))
}

/// Makes dictionaries, lists, words and numbers.
pub fn from_json<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?
        .call_method1("loads", (value.to_string(),))
}

/// Reads one of the words or forms that a type of the library has in files; `name` is the argument's.
pub fn parse<T: DeserializeOwned>(name: &str, value: Value) -> PyResult<T> {
    serde_json::from_value(value).map_err(|error| invalid(format!("`{name}`: {error}")))
}
