// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/gather_texts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace tessera::runtime {

std::vector<std::string> gather_texts(
    Communicator& group,
    const std::string& text,
    const std::string& label,
    const WaitCheck& check) {
  if (group.size() == 1) {
    return {text};
  }
  const at::Tensor length =
      at::tensor({static_cast<int64_t>(text.size())}, at::kLong);
  const at::Tensor lengths = at::empty({group.size()}, at::kLong);
  group.all_gather(lengths, length, label).wait(check);
  const auto* sizes = lengths.const_data_ptr<int64_t>();
  const int64_t longest =
      std::max<int64_t>(1, *std::max_element(sizes, sizes + group.size()));
  const at::Tensor self_tensor = at::empty({longest}, at::kByte);
  std::memcpy(self_tensor.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = at::empty({group.size() * longest}, at::kByte);
  group.all_gather(all, self_tensor, label).wait(check);
  std::vector<std::string> texts;
  const auto* bytes = static_cast<const char*>(all.const_data_ptr());
  for (int r = 0; r < group.size(); ++r) {
    texts.emplace_back(bytes + r * longest, static_cast<size_t>(sizes[r]));
  }
  return texts;
}

bool are_equal(
    Communicator& group,
    const std::string& text,
    const std::string& label,
    const WaitCheck& check) {
  const at::Tensor hash = at::tensor(
      {static_cast<int64_t>(std::hash<std::string>{}(text))}, at::kLong);
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, hash, label).wait(check);
  const auto* hashes = all.const_data_ptr<int64_t>();
  return std::all_of(hashes, hashes + all.numel(), [&](int64_t one) {
    return one == hashes[0];
  });
}

std::string find_differences(
    Communicator& group,
    const std::string& value,
    const std::string& account,
    const std::string& label,
    const WaitCheck& check) {
  constexpr size_t kShown = 4;
  struct Found {
    std::string value;
    std::string account;
    std::vector<size_t> ranks;
  };
  const std::string length = std::to_string(value.size());
  const std::vector<std::string> texts =
      gather_texts(group, length + " " + value + account, label, check);
  std::vector<Found> all;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::string& text = texts[rank];
    const size_t begin = text.find(' ') + 1;
    const size_t size = std::stoull(text);
    const std::string local = text.substr(begin, size);
    auto found = std::find_if(all.begin(), all.end(), [&](const Found& one) {
      return one.value == local;
    });
    if (found == all.end()) {
      found = all.insert(all.end(), {local, text.substr(begin + size), {}});
    }
    found->ranks.push_back(rank);
  }
  std::string lines;
  for (size_t i = 0; all.size() > 1 && i < all.size() && i < kShown; ++i) {
    const std::vector<size_t>& ranks = all[i].ranks;
    lines += ranks.size() == 1 ? "\n  rank " : "\n  ranks ";
    for (size_t k = 0; k < ranks.size() && k < kShown; ++k) {
      lines += (k == 0 ? "" : ", ") + std::to_string(ranks[k]);
    }
    lines += (ranks.size() > kShown ? ", ...: " : ": ") + all[i].account;
  }
  return lines + (all.size() > kShown ? "\n  ..." : "");
}

} // namespace tessera::runtime
