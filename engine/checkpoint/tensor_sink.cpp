// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/tensor_sink.h"

namespace tessera::engine {

void write_model(
    std::span<WholeModel> parts,
    TensorSink& sink,
    const std::string& what) {
  JobRanks& job = parts.front().job();
  job.on_all_ranks(what + ": creating the files", [&] {
    std::vector<WholeTensor> tensors;
    for (const WholeModel& part : parts) {
      tensors.insert(
          tensors.end(), part.tensors().begin(), part.tensors().end());
    }
    sink.prepare(tensors);
    if (job.rank() == 0) {
      sink.open();
    }
  });
  for (WholeModel& part : parts) {
    part.for_each(
        [&](const WholeTensor& tensor, const at::Tensor& value) {
          sink.write(tensor, value);
        },
        [&](const WholeTensor& tensor) { return sink.wants(tensor); });
  }
  job.on_all_ranks(what + ": writing the files", [&] {
    if (job.rank() == 0) {
      sink.commit();
    }
  });
}

} // namespace tessera::engine
