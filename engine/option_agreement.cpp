// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/option_agreement.h"

#include "tessera/engine/engine_config.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/option_texts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::engine {

namespace {

/// Options in which ranks may differ.
constexpr std::string_view kOfEachRank[] = {
    "memory.",
    "placement.",
    "offload.",
    "log_memory",
    "recompute_operators",
    "optimizer.overlap"};

runtime::OptionTexts shared_options(const EngineOptions& options) {
  runtime::OptionTexts texts = runtime::option_texts(options);
  std::erase_if(texts, [](const auto& text) {
    return std::any_of(
        std::begin(kOfEachRank),
        std::end(kOfEachRank),
        [&](std::string_view begin) { return text.first.starts_with(begin); });
  });
  return texts;
}

/// One value of each rank. Collective.
std::vector<int64_t> gathered(Communicator& ranks, int64_t mine) {
  const at::Tensor all = at::empty({ranks.size()}, at::kLong);
  ranks
      .all_gather(
          all,
          at::tensor({mine}, at::kLong),
          "comparison of the options across the ranks")
      .wait();
  const auto* values = all.const_data_ptr<int64_t>();
  return {values, values + all.numel()};
}

std::string value_of(
    const runtime::OptionTexts& texts,
    const std::string& path) {
  const auto found = texts.find(path);
  return found == texts.end() ? "not set" : found->second;
}

} // namespace

void check_same_options(
    sharding::PageRanks& ranks,
    const EngineOptions& options) {
  if (ranks.size() == 1) {
    return;
  }
  const std::string mine = nlohmann::json(shared_options(options)).dump();
  Communicator& control = ranks.control();
  const std::vector<int64_t> hashes =
      gathered(control, static_cast<int64_t>(std::hash<std::string>{}(mine)));
  const auto other =
      std::find_if(hashes.begin(), hashes.end(), [&](int64_t hash) {
        return hash != hashes.front();
      });
  if (other == hashes.end()) {
    return;
  }
  std::vector<runtime::OptionTexts> texts;
  for (const std::string& text : runtime::gather_texts(
           control, mine, "options that differ", ranks.watch_failures())) {
    texts.push_back(nlohmann::json::parse(text));
  }
  const auto r = static_cast<size_t>(other - hashes.begin());
  runtime::OptionTexts paths = texts[0];
  paths.insert(texts[r].begin(), texts[r].end());
  for (const auto& [path, value] : paths) {
    const std::vector<int>& job = ranks.of_module().mesh().ranks();
    TESSERA_CHECK(
        value_of(texts[0], path) == value_of(texts[r], path),
        "wrap: the option {} is {} on rank {} and {} on rank {}. Give wrap() the same options on every rank, but for memory, placement and offload.",
        path,
        value_of(texts[0], path),
        job[0],
        value_of(texts[r], path),
        job[r]);
  }
}

} // namespace tessera::engine
