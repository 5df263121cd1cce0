// SPDX-License-Identifier: Apache-2.0
// Exchange of findings between ranks that load from one checkpoint.
#include "tessera/sharding/weights/weight_matching.h"

#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <set>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tessera::sharding {

namespace {

using Names = std::vector<std::string>;
using nlohmann::json;

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// What a rank found, or why it failed.
struct Finding {
  LoadWeightsReport report;
  Names unused_patterns;
  Names names; ///< that the rank has
  Names matched; ///< that patterns match
  std::string error;
};

std::string to_text(const Finding& finding) {
  return json{
      {"report", json::parse(finding.report.json())},
      {"unused_patterns", finding.unused_patterns},
      {"names", finding.names},
      {"matched", finding.matched},
      {"error", finding.error}}
      .dump();
}

Finding finding_of(const std::string& text) {
  const json from = json::parse(text);
  const json& of = from.at("report");
  LoadWeightsReport report;
  for (const json& one : of.at("loaded")) {
    report.loaded.push_back({one.at("name"), one.at("source")});
  }
  for (const json& one : of.at("other_shapes")) {
    report.other_shapes.push_back(
        {one.at("name"),
         one.at("source"),
         one.at("expected"),
         one.at("found")});
  }
  report.missing = of.at("missing");
  report.missing_buffers = of.at("missing_buffers");
  report.not_chosen = of.at("not_chosen");
  report.unexpected = of.at("unexpected");
  report.left_out = of.at("left_out");
  return {
      std::move(report),
      from.at("unused_patterns"),
      from.at("names"),
      from.at("matched"),
      from.at("error")};
}

/// Adds those of `from` whose names are not in `all`.
template <typename Tensor>
void add_new(std::vector<Tensor>& all, const std::vector<Tensor>& from) {
  const auto name_of = [](const Tensor& tensor) -> const std::string& {
    if constexpr (std::is_same_v<Tensor, std::string>) {
      return tensor;
    } else {
      return tensor.name;
    }
  };
  std::set<std::string> known;
  for (const Tensor& tensor : all) {
    known.insert(name_of(tensor));
  }
  for (const Tensor& tensor : from) {
    if (known.insert(name_of(tensor)).second) {
      all.push_back(tensor);
    }
  }
}

/// Combines the reports: a tensor that no rank takes is unexpected if it is
/// unexpected on all of them.
LoadWeightsReport joined(const std::vector<Finding>& findings) {
  LoadWeightsReport report;
  const auto look = [&](const Names& names) {
    for (const std::string& name : names) {
      bool is_known = false;
      const bool is_taken = std::any_of(
          findings.begin(), findings.end(), [&](const Finding& finding) {
            const bool is_left_out = contains(finding.report.left_out, name);
            is_known = is_known || is_left_out;
            return !is_left_out && !contains(finding.report.unexpected, name);
          });
      Names& list = is_known ? report.left_out : report.unexpected;
      if (!is_taken && !contains(list, name)) {
        list.push_back(name);
      }
    }
  };
  look(findings.front().report.unexpected);
  look(findings.front().report.left_out);
  for (const Finding& finding : findings) {
    const LoadWeightsReport& local = finding.report;
    add_new(report.loaded, local.loaded);
    add_new(report.missing, local.missing);
    add_new(report.missing_buffers, local.missing_buffers);
    add_new(report.other_shapes, local.other_shapes);
    add_new(report.not_chosen, local.not_chosen);
  }
  return report;
}

/// A pattern has to match something on some rank.
void check_patterns(const std::vector<Finding>& findings) {
  Names names;
  Names unused = findings.front().unused_patterns;
  for (const Finding& finding : findings) {
    names.insert(names.end(), finding.matched.begin(), finding.matched.end());
    std::erase_if(unused, [&](const std::string& pattern) {
      return !contains(finding.unused_patterns, pattern);
    });
  }
  check_patterns_used(unused, names);
}

void check_unexpected(
    const Names& unexpected,
    const std::vector<Finding>& findings,
    const WeightFiles& files,
    const LoadWeightsOptions& options) {
  Names known;
  for (const Finding& finding : findings) {
    known.insert(known.end(), finding.names.begin(), finding.names.end());
  }
  std::ostringstream text;
  for (const std::string& name : unexpected) {
    text << "\n  " << unexpected_text(name, options, known);
  }
  TESSERA_CHECK(
      unexpected.empty(),
      "the weights in {} do not match the model in any of its parts:{}",
      files.path(),
      text.str());
}

} // namespace

LoadWeightsReport match_weights_of_rank(
    std::vector<WeightTarget>& targets,
    const WeightFiles& files,
    const LoadWeightsOptions& options,
    Communicator& ranks,
    const WaitCheck& check) {
  Finding self_finding;
  self_finding.names = names_of(targets, {});
  self_finding.matched = names_of(targets, options.other_names);
  std::exception_ptr failure;
  try {
    LoadWeightsOptions local = options;
    local.allows_unexpected = true;
    WeightMatches matches = find_matches(targets, files, local);
    self_finding.report = std::move(matches.report);
    self_finding.unused_patterns = std::move(matches.unused_patterns);
  } catch (const std::exception& error) {
    failure = std::current_exception();
    self_finding.error = error.what();
  }
  const std::vector<std::string> texts = runtime::gather_texts(
      ranks,
      to_text(self_finding),
      "what the ranks take from a checkpoint",
      check);
  if (failure) {
    std::rethrow_exception(failure);
  }
  std::vector<Finding> findings;
  std::set<std::string_view> seen; // many ranks have the same tensors
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (seen.insert(texts[rank]).second) {
      findings.push_back(finding_of(texts[rank]));
      TESSERA_CHECK(
          findings.back().error.empty(),
          "on rank {}: {}",
          rank,
          findings.back().error);
    }
  }
  check_patterns(findings);
  LoadWeightsReport report = joined(findings);
  if (options.strict && !options.allows_unexpected) {
    check_unexpected(report.unexpected, findings, files, options);
  }
  return report;
}

} // namespace tessera::sharding
