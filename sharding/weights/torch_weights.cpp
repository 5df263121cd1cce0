// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weights/torch_weights.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <memory>

namespace tessera::sharding {

namespace {

/// The dictionary with the weights.
const runtime::PickleNode& weights_of(const runtime::PickleNode& root) {
  for (const char* key :
       {"module", "state_dict", "model_state_dict", "model"}) {
    const runtime::PickleNode* inner =
        root.is(runtime::PickleKind::kDict) ? root.find(key) : nullptr;
    if (inner != nullptr && inner->is(runtime::PickleKind::kDict)) {
      return *inner;
    }
  }
  return root;
}

} // namespace

WeightEntry torch_entry(
    const std::string& name,
    const runtime::TorchTensor& tensor) {
  WeightEntry entry{name, tensor.dtype, tensor.shape, {}};
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) ==
      tensor.shape.end()) {
    entry.regions.push_back(
        {{std::vector<int64_t>(tensor.shape.size(), 0),
          tensor.shape,
          {tensor.offset, tensor.strides}},
         tensor.storage});
  }
  return entry;
}

WeightSet torch_weights(const std::filesystem::path& path) {
  const auto file = std::make_shared<const runtime::TorchFile>(
      runtime::TorchFile::open(path));
  WeightSet set;
  for (const auto& [name, tensor] :
       file->tensors_in(weights_of(file->root()))) {
    TESSERA_CHECK(
        set.entries.emplace(name, torch_entry(name, tensor)).second,
        "{}: two tensors have the name '{}'",
        path,
        name);
  }
  TESSERA_CHECK(
      !set.entries.empty(),
      "{}: what was saved is {} and has no tensors in dictionaries; save the state_dict() of the model with torch.save",
      path,
      show(file->root()));
  set.files.push_back(file);
  return set;
}

} // namespace tessera::sharding
