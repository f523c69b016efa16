use std::fmt;

use super::Point;

/// A surface of triangles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mesh {
    /// The corners, in any unit.
    pub vertices: Vec<[f32; 3]>,
    /// The triangles, by the positions of their corners in `vertices`. Either side of a triangle is seen.
    pub faces: Vec<[u32; 3]>,
}

/// Why a mesh cannot be rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeshProblem {
    /// The mesh has no triangle.
    NoFaces,
    /// A triangle has a corner that does not exist.
    MissingVertex {
        /// The position of the triangle.
        face: usize,
    },
    /// A corner has a coordinate that is infinite or not a number.
    NotFinite {
        /// The position of the corner.
        vertex: usize,
    },
    /// All corners are at one place.
    NoExtent,
    /// No pixel of the depth image shows the mesh.
    EmptyDepth,
}

impl fmt::Display for MeshProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFaces => formatter.write_str("has no faces"),
            Self::MissingVertex { face } => write!(formatter, "has a face {face} without a vertex"),
            Self::NotFinite { vertex } => {
                write!(formatter, "has a vertex {vertex} that is not finite")
            }
            Self::NoExtent => formatter.write_str("has all vertices at one place"),
            Self::EmptyDepth => formatter.write_str("leaves the depth image empty"),
        }
    }
}

impl Mesh {
    /// Its corners, once everything about it was checked that a renderer relies on.
    pub(super) fn checked(&self) -> Result<Vec<Point>, MeshProblem> {
        if self.faces.is_empty() {
            return Err(MeshProblem::NoFaces);
        }
        let corners = self.vertices.len();
        let missing = |face: &[u32; 3]| face.iter().any(|&corner| corner as usize >= corners);
        if let Some(face) = self.faces.iter().position(missing) {
            return Err(MeshProblem::MissingVertex { face });
        }
        let wild = |vertex: &[f32; 3]| vertex.iter().any(|value| !value.is_finite());
        if let Some(vertex) = self.vertices.iter().position(wild) {
            return Err(MeshProblem::NotFinite { vertex });
        }
        if self
            .vertices
            .iter()
            .all(|vertex| *vertex == self.vertices[0])
        {
            return Err(MeshProblem::NoExtent);
        }
        Ok(self
            .vertices
            .iter()
            .map(|vertex| vertex.map(f64::from))
            .collect())
    }
}
