// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/option_agreement.h"

#include "tessera/engine/engine_config.h"
#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/comm/parallel_mesh.h"
#include "tessera/runtime/core/error.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
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
  // Also one that cannot be configured.
  texts["optimizer.type"] =
      "\"" + options.optimizer.rule.optimizer().saved_name() + "\"";
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

/// The first text in which a rank differs from the first one.
struct Difference {
  std::string path;
  size_t rank = 0; ///< place of the other one
  std::string first_value;
  std::string value;

  /// "1 on rank 0 and 2 on rank 3".
  std::string text(const std::vector<int>& ranks) const {
    return formatted(
        "{} on rank {} and {} on rank {}",
        first_value,
        ranks.front(),
        value,
        ranks[rank]);
  }
};

/// Collective over `ranks`; blocks.
std::optional<Difference> find_difference(
    Communicator& ranks,
    const runtime::OptionTexts& mine,
    const WaitCheck& check = {}) {
  std::vector<runtime::OptionTexts> texts;
  for (const std::string& text : runtime::gather_texts(
           ranks, nlohmann::json(mine).dump(), "options that differ", check)) {
    texts.push_back(nlohmann::json::parse(text));
  }
  const auto other =
      std::find_if(texts.begin(), texts.end(), [&](const auto& one) {
        return one != texts.front();
      });
  if (other == texts.end()) {
    return std::nullopt;
  }
  runtime::OptionTexts all = texts[0];
  all.insert(other->begin(), other->end());
  std::vector<std::string> paths;
  for (const auto& [path, value] : all) {
    paths.push_back(path);
  }
  // Other types have other options.
  std::stable_partition(
      paths.begin(), paths.end(), [](const std::string& path) {
        return path.ends_with(".type");
      });
  for (const std::string& path : paths) {
    const Difference difference{
        path,
        static_cast<size_t>(other - texts.begin()),
        value_of(texts[0], path),
        value_of(*other, path)};
    if (difference.first_value != difference.value) {
      return difference;
    }
  }
  return std::nullopt;
}

/// As above, where they mostly are equal.
std::optional<Difference> compare(
    Communicator& ranks,
    const runtime::OptionTexts& mine,
    const WaitCheck& check = {}) {
  const std::hash<std::string> hash;
  const std::vector<int64_t> hashes =
      gathered(ranks, static_cast<int64_t>(hash(nlohmann::json(mine).dump())));
  const bool all_equal =
      std::all_of(hashes.begin(), hashes.end(), [&](int64_t one) {
        return one == hashes.front();
      });
  return all_equal ? std::nullopt : find_difference(ranks, mine, check);
}

void refuse(
    const std::optional<Difference>& difference,
    const std::vector<int>& ranks) {
  TESSERA_CHECK(
      !difference,
      "wrap: the option {} is {}. Give wrap() the same options on every rank, but for memory, placement and offload.",
      difference->path,
      difference->text(ranks));
}

} // namespace

void check_same_ranks(Communicator& job, const EngineOptions& options) {
  if (job.size() == 1) {
    return;
  }
  runtime::OptionTexts mine{
      {"sharding.shard_ranks", std::to_string(options.sharding.shard_ranks)}};
  if (options.parallel != nullptr) {
    // Its first line; the others follow from it.
    const std::string table = options.parallel->table();
    mine["EngineOptions::parallel"] = table.substr(0, table.find('\n'));
  }
  std::vector<int> ranks(static_cast<size_t>(job.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  refuse(compare(job, mine), ranks);
}

void check_same_options(
    sharding::PageRanks& ranks,
    const EngineOptions& options) {
  if (ranks.size() > 1) {
    refuse(
        compare(
            ranks.control(), shared_options(options), ranks.watch_failures()),
        ranks.of_module().mesh().ranks());
  }
}

void tell_other_settings(
    sharding::PageRanks& ranks,
    const runtime::OptionTexts& mine,
    const std::string& found) {
  const auto difference =
      find_difference(ranks.control(), mine, ranks.watch_failures());
  throw sharding::OtherSettingsError(
      difference ? found + "\nThe difference: " + difference->path + ": " +
                       difference->text(ranks.of_module().mesh().ranks()) + "."
                 : found);
}

} // namespace tessera::engine
