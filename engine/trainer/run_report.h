// SPDX-License-Identifier: Apache-2.0
#pragma once
// The lines of a training log as curves.

#include "tessera/engine/report/html_report.h"
#include "tessera/engine/trainer/step_metrics.h"

#include <string>
#include <vector>

namespace tessera {

LinePlot loss_plot(const std::vector<StepMetrics>& lines);

/// Loss, learning rate, and what the time of steps goes to.
/// @param title e.g. the run folder's name.
HtmlReport run_report(
    const std::string& title,
    const std::vector<StepMetrics>& lines);

} // namespace tessera
