// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/tensor_sink.h"

namespace tessera::engine {

void write_model(
    ModelTensors& model,
    TensorSink& sink,
    const std::string& label) {
  const bool writes = model.ranks().rank() == 0;
  model.on_all_ranks(label + ": creating the files", [&] {
    sink.prepare(model.tensors());
    if (writes) {
      sink.open();
    }
  });
  model.for_each(
      [&](const ModelTensor& tensor, const at::Tensor& value) {
        sink.write(tensor, value);
      },
      [&](const ModelTensor& tensor) { return sink.wants(tensor); });
  model.on_all_ranks(label + ": writing the files", [&] {
    if (writes) {
      sink.commit();
    }
  });
}

} // namespace tessera::engine
