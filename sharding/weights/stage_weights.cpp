// SPDX-License-Identifier: Apache-2.0
// Exchange of findings between pipeline stages that load from one checkpoint.
#include "tessera/sharding/weights/weight_matching.h"

#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

namespace tessera::sharding {

namespace {

using Names = std::vector<std::string>;
using nlohmann::json;

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// What a pipeline stage found, or why it failed.
struct Finding {
  LoadWeightsReport report;
  Names names; ///< that the pipeline stage has
  std::string error;
};

std::string to_text(const Finding& finding) {
  return json{
      {"missing", finding.report.missing},
      {"unexpected", finding.report.unexpected},
      {"left_out", finding.report.left_out},
      {"names", finding.names},
      {"error", finding.error}}
      .dump();
}

Finding finding_of(const std::string& text) {
  const json from = json::parse(text);
  return {
      {from.at("missing"), from.at("unexpected"), from.at("left_out")},
      from.at("names"),
      from.at("error")};
}

/// Combines the reports: a tensor that no pipeline stage takes is unexpected if
/// it is unexpected on all of them.
LoadWeightsReport joined(const std::vector<Finding>& stages) {
  LoadWeightsReport report;
  const auto look = [&](const Names& names) {
    for (const std::string& name : names) {
      bool is_known = false;
      const bool is_taken =
          std::any_of(stages.begin(), stages.end(), [&](const Finding& stage) {
            const bool is_left_out = contains(stage.report.left_out, name);
            is_known = is_known || is_left_out;
            return !is_left_out && !contains(stage.report.unexpected, name);
          });
      Names& list = is_known ? report.left_out : report.unexpected;
      if (!is_taken && !contains(list, name)) {
        list.push_back(name);
      }
    }
  };
  look(stages.front().report.unexpected);
  look(stages.front().report.left_out);
  for (const Finding& stage : stages) {
    for (const std::string& name : stage.report.missing) {
      if (!contains(report.missing, name)) {
        report.missing.push_back(name);
      }
    }
  }
  return report;
}

void check_unexpected(
    const Names& unexpected,
    const std::vector<Finding>& stages,
    const WeightFiles& files) {
  Names known;
  for (const Finding& stage : stages) {
    known.insert(known.end(), stage.names.begin(), stage.names.end());
  }
  std::ostringstream text;
  for (const std::string& name : unexpected) {
    text << "\n  unexpected: '" << name << "'";
    if (const std::string near = runtime::nearest_name(name, known);
        !near.empty()) {
      text << "; the nearest is '" << near << "'";
    }
  }
  TESSERA_CHECK(
      unexpected.empty(),
      "the weights in {} do not match the model in any of its parts:{}",
      files.path(),
      text.str());
}

} // namespace

LoadWeightsReport match_weights_of_stage(
    std::vector<WeightTarget>& targets,
    const WeightFiles& files,
    const LoadWeightsOptions& options,
    Communicator& group,
    const WaitCheck& check) {
  Finding mine;
  for (const WeightTarget& target : targets) {
    mine.names.insert(
        mine.names.end(), target.spec.names.begin(), target.spec.names.end());
  }
  std::exception_ptr error;
  try {
    LoadWeightsOptions own = options;
    own.allows_unexpected = true;
    mine.report = match_weights(targets, files, own);
  } catch (const std::exception& what) {
    error = std::current_exception();
    mine.error = what.what();
  }
  std::vector<Finding> stages;
  for (const std::string& text : runtime::gather_texts(
           group,
           to_text(mine),
           "what the parts of the model take from a checkpoint",
           check)) {
    stages.push_back(finding_of(text));
  }
  if (error) {
    std::rethrow_exception(error);
  }
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    TESSERA_CHECK(
        stages[stage].error.empty(),
        "in part {} of the model: {}",
        stage,
        stages[stage].error);
  }
  LoadWeightsReport report = joined(stages);
  if (options.strict && !options.allows_unexpected) {
    check_unexpected(report.unexpected, stages, files);
  }
  return report;
}

} // namespace tessera::sharding
