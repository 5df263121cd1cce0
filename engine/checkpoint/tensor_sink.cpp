// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/tensor_sink.h"

namespace tessera::engine {

void write_model(WholeModel& model, TensorSink& sink, const std::string& what) {
  JobRanks& job = model.job();
  job.on_all_ranks(what + ": creating the files", [&] {
    sink.prepare(model.tensors());
    if (job.rank() == 0) {
      sink.open();
    }
  });
  model.for_each(
      [&](const WholeTensor& tensor, const at::Tensor& value) {
        sink.write(tensor, value);
      },
      [&](const WholeTensor& tensor) { return sink.wants(tensor); });
  job.on_all_ranks(what + ": writing the files", [&] {
    if (job.rank() == 0) {
      sink.commit();
    }
  });
}

} // namespace tessera::engine
