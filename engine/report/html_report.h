// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HtmlReport` shows a training run on one page.

#include "tessera/engine/report/line_plot.h"

#include <string>
#include <utility>
#include <vector>

namespace tessera::engine {

/// A share of a total, e.g. the seconds of forward in a step.
struct ReportShare {
  std::string label;
  double seconds = 0;
};

struct HtmlReport {
  std::string title;
  /// Names and values, as text.
  std::vector<std::pair<std::string, std::string>> facts;
  /// Shown folded, as it is; empty: none.
  std::string configuration;
  /// The split of the mean time of a step; empty if it was not measured.
  std::vector<ReportShare> shares;
  std::vector<LinePlot> plots;
};

/// The page as one HTML document without external resources. Deterministic.
std::string to_html(const HtmlReport& report);

} // namespace tessera::engine
