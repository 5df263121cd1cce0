// SPDX-License-Identifier: Apache-2.0
#pragma once
// `run_report()` draws the lines of a training log as curves.

#include "tessera/engine/report/html_report.h"
#include "tessera/engine/trainer/metric_sink.h"
#include "tessera/engine/trainer/step_metrics.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tessera::engine {

LinePlot loss_plot(const std::vector<StepMetrics>& lines);

/// Names and values.
using RunFacts = std::vector<std::pair<std::string, std::string>>;

/// A page with the loss, the gradient norm, the learning rate, tokens/s, and
/// the split of the time of steps.
/// @param title e.g. the name of the run folder.
/// @param facts of the run, such as its device, ranks and held-out results;
///   they precede those of the metrics.
/// @param configuration as JSON; may be empty.
HtmlReport run_report(
    const std::string& title,
    const std::vector<StepMetrics>& lines,
    const RunFacts& facts = {},
    const std::string& configuration = "");

/// Writes loss.svg and report.html to a run folder, with its config.json, if
/// there is one.
/// @throws tessera::Error if a file cannot be written.
void write_run_report(
    const std::filesystem::path& folder,
    const std::vector<StepMetrics>& lines,
    const RunFacts& facts);

/// The lines of metrics.jsonl in a run folder, up to the first that is not
/// readable; none if there is no such file.
std::vector<StepMetrics> read_metrics(const std::filesystem::path& folder);

/// What sinks are told of a run with these lines.
MetricRun metric_run_of(
    const std::filesystem::path& folder,
    const std::vector<StepMetrics>& lines);

} // namespace tessera::engine
