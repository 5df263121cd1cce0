// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SavedByProducerCounts` counts saved bytes by the kind of operator that
// produced them.

#include "tessera/offload/activations/activation_statistics.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <typeindex>
#include <unordered_map>
#include <vector>

namespace tessera::offload {

/// Names are made for the report only; counting is a look-up by type.
class SavedByProducerCounts {
 public:
  struct Count {
    int64_t storages = 0;
    int64_t bytes = 0;
    int64_t bytes_left = 0;
  };

  /// The count of the producer of `tensor`; valid until clear().
  Count& of(const at::Tensor& tensor);

  /// Largest first.
  std::vector<SavedByProducer> report() const;

  void clear() {
    counts_.clear();
  }

 private:
  std::unordered_map<std::type_index, Count> counts_;
};

} // namespace tessera::offload
