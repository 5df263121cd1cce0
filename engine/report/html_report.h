// SPDX-License-Identifier: Apache-2.0
#pragma once
// A training run on one page.

#include "tessera/engine/report/line_plot.h"

#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// A part of a whole, e.g. the forward's seconds of a step's.
struct ReportShare {
  std::string label;
  double seconds = 0;
};

struct HtmlReport {
  std::string title;
  /// Names and values, as text.
  std::vector<std::pair<std::string, std::string>> facts;
  /// What the time of a mean step goes to; empty where it was not measured.
  std::vector<ReportShare> shares;
  std::vector<LinePlot> plots;
};

/// The page as one HTML document that loads nothing else. Deterministic.
std::string to_html(const HtmlReport& report);

} // namespace tessera
