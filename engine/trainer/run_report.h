// SPDX-License-Identifier: Apache-2.0
#pragma once
// `run_report()` draws the lines of a training log as curves.

#include "tessera/engine/report/html_report.h"
#include "tessera/engine/trainer/step_metrics.h"

#include <string>
#include <vector>

namespace tessera::engine {

LinePlot loss_plot(const std::vector<StepMetrics>& lines);

/// A page with the loss, the learning rate, and the split of the time of steps.
/// @param title e.g. the name of the run folder.
HtmlReport run_report(
    const std::string& title,
    const std::vector<StepMetrics>& lines);

} // namespace tessera::engine
