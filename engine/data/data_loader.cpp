// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/data/data_loader.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_check.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/memory/to_device.h"

namespace tessera {

void visit_fields(runtime::OptionFields& fields, DataLoaderOptions& options) {
  fields.field(
      "threads",
      options.threads,
      {.min = 0},
      "threads per rank that make batches while others are trained on; 0: they are made when they are needed. The batches are the same");
  fields.field(
      "prefetch",
      options.prefetch,
      {.min = 1},
      "batches that are made ahead at most");
}

void check(const DataLoaderOptions& options) {
  runtime::check_fields("data.loader", options);
}

void check_same_samples(
    const CheckpointState& state,
    const SampleOrder& order) {
  const auto check_same = [&](const char* key, const char* label, auto now) {
    // Earlier versions did not save them.
    const auto saved = state.values.value(key, now);
    TESSERA_CHECK(
        saved == now,
        "load: the checkpoint's data loader had {} {}; this one has {}, and would continue with other samples. Give SampleOrder the same ones, or load the checkpoint without the data loader.",
        label,
        saved,
        now);
  };
  check_same("samples_of_epoch", "epochs of so many samples:", order.samples());
  check_same("seed", "the seed", order.seed());
}

at::Tensor pinned(const at::Tensor& host, c10::Device device) {
  return runtime::pinned_for(host, device);
}

} // namespace tessera
