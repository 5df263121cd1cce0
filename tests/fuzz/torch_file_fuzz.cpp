// SPDX-License-Identifier: Apache-2.0
// Anything as a file of torch.save, and as a pickle.

#include "fuzz/fuzz_target.h"
#include "tessera/runtime/io/torch_file.h"

#include <span>

namespace tessera::fuzz_torch_file {

/// What lies outside of the file cannot be read.
void touch(const runtime::TorchTensor& tensor) {
  int64_t last = tensor.offset;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] == 0) {
      return;
    }
    last += (tensor.shape[d] - 1) * tensor.strides[d];
  }
  const size_t size = size_of(tensor.dtype);
  const std::byte* data = tensor.storage.data();
  [[maybe_unused]] volatile std::byte seen{};
  seen = data[static_cast<size_t>(tensor.offset) * size];
  seen = data[static_cast<size_t>(last + 1) * size - 1];
}

TESSERA_FUZZ_TARGET(torch_file) {
  const auto bytes = std::as_bytes(std::span(input.data(), input.size()));
  try {
    const auto file = runtime::TorchFile::in(bytes, "input");
    for (const auto& [name, tensor] : file.tensors_in(file.root())) {
      touch(tensor);
    }
    file.damaged_entries();
  } catch (const Error&) {
  }
  try {
    const runtime::Pickle pickle(bytes, "input", runtime::is_tensor_global);
    TESSERA_CHECK(pickle.bytes() <= input.size(), "a pickle is too long");
    show(pickle.root());
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_torch_file
