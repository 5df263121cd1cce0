// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions that prepare the points of a curve for drawing.

#include <vector>

#include "tessera/engine/report/line_plot.h"
#include "tessera/engine/report/svg_canvas.h"

namespace tessera::engine {

/// Whether the point can be drawn: finite, and small enough that sums and
/// differences of coordinates stay finite.
bool is_drawable(const PlotPoint& point);

/// The drawable points with y replaced by the mean over a centered window of a
/// thirtieth of the points, cut off at both ends of the curve.
std::vector<PlotPoint> smoothed(const std::vector<PlotPoint>& points);

/// Keeps the first, the extremes and the last of consecutive points in one
/// pixel column: the picture looks the same and stays small.
std::vector<Pixel> thinned(const std::vector<Pixel>& points);

} // namespace tessera::engine
