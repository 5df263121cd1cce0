// SPDX-License-Identifier: Apache-2.0
#pragma once
// Curves as a picture.

#include <string>
#include <vector>

namespace tessera {

struct PlotPoint {
  double x;
  double y;
};

/// One curve. A point that is not finite (nan, inf, beyond 1e100) leaves a gap.
struct PlotSeries {
  std::string label; ///< In the legend; empty for none.
  std::vector<PlotPoint> points; ///< In drawing order, usually ascending in x.
  /// Draws the points faintly and a running mean over them: the mean of a
  /// centred window of a thirtieth of the points, cut off at both ends.
  bool smooth = false;
};

/// A line plot with title, axes, grid and legend.
struct LinePlot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotSeries> series;
  int width_px = 960;
  int height_px = 540;
};

/// The plot as a self-contained SVG document on a white background. Its size
/// stays bounded: points closer than a pixel are thinned to their extremes.
/// Deterministic. Texts are UTF-8.
std::string to_svg(const LinePlot& plot);

} // namespace tessera
