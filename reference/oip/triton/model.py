"""A model with the inputs and outputs of the shipped network, which says class 3 of everything."""

import sys

# The process of the backend does not look into virtual environments; `beside` writes the path here.
sys.path.append("SITE")

import numpy as np
import triton_python_backend_utils as backend


class TritonPythonModel:
    """What the backend for Python asks for."""

    def execute(self, requests):
        """Answers requests."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Answers one."""
        count = len(backend.get_input_tensor_by_name(request, "images").as_numpy())
        probabilities = np.zeros((count, 10), np.float32)
        probabilities[:, 3] = 1
        outputs = {
            "probabilities": probabilities,
            "class": np.full(count, 3, np.int64),
            "label": np.full(count, b"triangle", object),
        }
        return backend.InferenceResponse([backend.Tensor(name, values) for name, values in outputs.items()])
