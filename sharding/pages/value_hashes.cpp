// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/value_hashes.h"

#include "tessera/runtime/io/checksum.h"

#include <c10/core/GradMode.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <utility>

namespace tessera::sharding {

void ValueHashes::add(const std::string& parameter, const at::Tensor& value) {
  constexpr int64_t kBlock = int64_t{1} << 22; // elements in host memory
  const c10::NoGradGuard no_grad;
  const at::Tensor flat = value.contiguous().view({-1});
  std::string hashes;
  for (int64_t begin = 0; begin < flat.numel(); begin += kBlock) {
    const at::Tensor block =
        flat.narrow(0, begin, std::min(kBlock, flat.numel() - begin))
            .to(at::kCPU);
    hashes += runtime::checksum_of(
        {static_cast<const std::byte*>(block.const_data_ptr()),
         block.nbytes()});
  }
  hashes_.insert_or_assign(parameter, std::move(hashes));
}

ValueHashes ValueHashes::of(const std::string& parameter) const {
  ValueHashes one;
  if (const auto found = hashes_.find(parameter); found != hashes_.end()) {
    one.hashes_.insert(*found);
  }
  return one;
}

int64_t ValueHashes::hash() const {
  return static_cast<int64_t>(std::hash<std::string>{}(to_text()));
}

std::string ValueHashes::to_text() const {
  return nlohmann::json(hashes_).dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ValueHashes ValueHashes::from_text(const std::string& text) {
  ValueHashes values;
  values.hashes_ = nlohmann::json::parse(text);
  return values;
}

std::vector<std::string> ValueHashes::other_than(
    const ValueHashes& other) const {
  std::vector<std::pair<std::string, std::string>> differences;
  std::set_symmetric_difference(
      hashes_.begin(),
      hashes_.end(),
      other.hashes_.begin(),
      other.hashes_.end(),
      std::back_inserter(differences));
  std::vector<std::string> names;
  for (const auto& [name, hash] : differences) { // one of both, or of one
    if (names.empty() || names.back() != name) {
      names.push_back(name);
    }
  }
  return names;
}

} // namespace tessera::sharding
