// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/gather_texts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstring>

namespace tessera::runtime {

std::vector<std::string> gather_texts(
    Communicator& group,
    const std::string& text,
    const std::string& what,
    const WaitCheck& check) {
  if (group.size() == 1) {
    return {text};
  }
  const at::Tensor length =
      at::tensor({static_cast<int64_t>(text.size())}, at::kLong);
  const at::Tensor lengths = at::empty({group.size()}, at::kLong);
  group.all_gather(lengths, length, what).wait(check);
  const auto* sizes = lengths.const_data_ptr<int64_t>();
  const int64_t longest =
      std::max<int64_t>(1, *std::max_element(sizes, sizes + group.size()));
  const at::Tensor mine = at::empty({longest}, at::kByte);
  std::memcpy(mine.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = at::empty({group.size() * longest}, at::kByte);
  group.all_gather(all, mine, what).wait(check);
  std::vector<std::string> texts;
  const auto* bytes = static_cast<const char*>(all.const_data_ptr());
  for (int r = 0; r < group.size(); ++r) {
    texts.emplace_back(bytes + r * longest, static_cast<size_t>(sizes[r]));
  }
  return texts;
}

} // namespace tessera::runtime
