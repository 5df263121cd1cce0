// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/option_agreement.h"

#include "tessera/engine/engine_config.h"
#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/comm/parallel_mesh.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/sharding/paging/pager.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::engine {

namespace {

/// Those of a job: 0, 1, ...
std::vector<int> numbers_of_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

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

/// Whether an option must be the same on ranks with other layers too: rules for
/// some parameters, and how parameters are grouped, need not be.
bool is_of_all_stages(const std::string& path) {
  return (path.starts_with("optimizer.") &&
          !path.starts_with("optimizer.parameters")) ||
         path.starts_with("loss_scale.") || path == "on_nonfinite";
}

/// "2 elements ("first", "second")": a list, with what its elements select.
std::string list_text(
    const runtime::OptionTexts& texts,
    const std::string& path) {
  const auto count = static_cast<size_t>(std::stoul(texts.at(path)));
  std::string selected;
  for (size_t i = 0; i < count; ++i) {
    for (const char* key : {"path", "type", "pattern"}) {
      const auto found = texts.find(formatted("{}.{}.{}", path, i, key));
      if (found != texts.end() && found->second != "\"\"") {
        selected += (selected.empty() ? "" : ", ") + found->second;
      }
    }
  }
  const std::string elements =
      runtime::count_text(static_cast<int64_t>(count), "element");
  return selected.empty() ? elements : elements + " (" + selected + ")";
}

std::string value_of(
    const runtime::OptionTexts& texts,
    const std::string& path) {
  const auto found = texts.find(path);
  if (found == texts.end()) {
    return "not set";
  }
  // Of a string there would be quotes.
  return found->second.ends_with(" elements") ? list_text(texts, path)
                                              : found->second;
}

/// The list that `path` is in an element of, if the ranks have other numbers of
/// elements; else `path`.
std::string list_that_differs(
    const runtime::OptionTexts& first,
    const runtime::OptionTexts& other,
    const std::string& path) {
  for (size_t dot = path.find('.'); dot != std::string::npos;
       dot = path.find('.', dot + 1)) {
    const std::string list = path.substr(0, dot);
    if (value_of(first, list) != value_of(other, list)) {
      return list;
    }
  }
  return path;
}

/// Collective over `ranks`; blocks.
std::optional<RankDifference> find_difference(
    Communicator& ranks,
    const runtime::OptionTexts& self_texts,
    const WaitCheck& check = {}) {
  std::vector<runtime::OptionTexts> texts;
  for (const std::string& text : runtime::gather_texts(
           ranks,
           nlohmann::json(self_texts).dump(),
           "values that differ",
           check)) {
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
    if (value_of(texts[0], path) != value_of(*other, path)) {
      const std::string named = list_that_differs(texts[0], *other, path);
      return RankDifference{
          named,
          static_cast<size_t>(other - texts.begin()),
          value_of(texts[0], named),
          value_of(*other, named)};
    }
  }
  return std::nullopt;
}

void refuse(
    const std::optional<RankDifference>& difference,
    const std::vector<int>& ranks) {
  TESSERA_CHECK(
      !difference,
      "wrap: the option {} is {}. Give wrap() the same options on every rank, but for memory, placement and offload.",
      difference->path,
      difference->text(ranks));
}

} // namespace

std::string RankDifference::text(const std::vector<int>& ranks) const {
  return formatted(
      "{} on rank {} and {} on rank {}",
      first_value,
      ranks.front(),
      value,
      ranks[rank]);
}

std::optional<RankDifference> find_rank_difference(
    Communicator& ranks,
    const runtime::OptionTexts& self_texts,
    const WaitCheck& check) {
  return runtime::are_equal(
             ranks,
             nlohmann::json(self_texts).dump(),
             "comparison of values across the ranks",
             check)
             ? std::nullopt
             : find_difference(ranks, self_texts, check);
}

void check_same_on_all_ranks(
    World& world,
    const std::string& label,
    const runtime::OptionTexts& self_texts,
    const std::string& place) {
  const auto ranks = world.new_communicator(label);
  const auto difference = find_rank_difference(*ranks, self_texts);
  TESSERA_CHECK(
      !difference,
      "{}{} is {}. Give all ranks the same.",
      place,
      difference->path,
      difference->text(numbers_of_ranks(world.size())));
}

void check_same_ranks(Communicator& job, const EngineOptions& options) {
  if (job.size() == 1) {
    return;
  }
  runtime::OptionTexts self_texts;
  if (options.parallel == nullptr) { // all ranks train the same module
    self_texts = shared_options(options);
  } else {
    self_texts["sharding.shard_ranks"] =
        std::to_string(options.sharding.shard_ranks);
    // Its first line; the others follow from it.
    const std::string table = options.parallel->table();
    self_texts["EngineOptions::parallel"] = table.substr(0, table.find('\n'));
    for (const auto& [path, value] : shared_options(options)) {
      if (is_of_all_stages(path)) {
        self_texts.emplace(path, value);
      }
    }
  }
  refuse(find_rank_difference(job, self_texts), numbers_of_ranks(job.size()));
}

void check_same_options(
    sharding::PageRanks& ranks,
    const EngineOptions& options) {
  if (ranks.size() > 1 && options.parallel != nullptr) {
    refuse(
        find_rank_difference(
            ranks.control(), shared_options(options), ranks.watch_failures()),
        ranks.of_module().mesh().ranks());
  }
}

void refuse_other_settings(
    sharding::PageRanks& ranks,
    const runtime::OptionTexts& self_texts,
    const std::string& found) {
  const auto difference =
      find_difference(ranks.control(), self_texts, ranks.watch_failures());
  throw sharding::OtherSettingsError(
      difference ? found + "\nThe difference: " + difference->path + ": " +
                       difference->text(ranks.of_module().mesh().ranks()) + "."
                 : found);
}

} // namespace tessera::engine
