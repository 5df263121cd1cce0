// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/svg_canvas.h"

#include "tessera/engine/report/markup.h"

#include <algorithm>
#include <iomanip>
#include <locale>

namespace tessera::engine {

namespace {

constexpr const char* kFont =
    "'Helvetica Neue', 'Segoe UI', 'DejaVu Sans', Arial, sans-serif";

} // namespace

SvgCanvas::SvgCanvas(int width_px, int height_px, std::string_view title) {
  out_.imbue(std::locale::classic());
  // A tenth of a pixel is finer than visible.
  out_ << std::fixed << std::setprecision(1);
  out_ << R"(<svg xmlns="http://www.w3.org/2000/svg" width=")" << width_px
       << R"(" height=")" << height_px << R"(" viewBox="0 0 )" << width_px
       << ' ' << height_px << R"(" role="img" font-family=")" << kFont
       << "\">\n<title>" << escaped_markup(title) << "</title>\n<rect width=\""
       << width_px << R"(" height=")" << height_px << "\" fill=\"#ffffff\"/>\n";
}

void SvgCanvas::line(Pixel from, Pixel to, const Stroke& stroke) {
  out_ << R"(<line x1=")" << from.x << R"(" y1=")" << from.y << R"(" x2=")"
       << to.x << R"(" y2=")" << to.y << '"';
  write_stroke(stroke);
  out_ << "/>\n";
}

void SvgCanvas::polyline(std::span<const Pixel> points, const Stroke& stroke) {
  out_ << R"(<path fill="none" stroke-linejoin="round" stroke-linecap="round")";
  write_stroke(stroke);
  out_ << R"( d=")";
  char command = 'M';
  for (const Pixel& point : points) {
    out_ << command << point.x << ' ' << point.y;
    command = 'L';
  }
  // A line of length zero shows its round ends.
  out_ << (points.size() == 1 ? "h0" : "") << "\"/>\n";
}

void SvgCanvas::dot(Pixel center, double radius, const char* color) {
  out_ << R"(<circle cx=")" << center.x << R"(" cy=")" << center.y << R"(" r=")"
       << radius << R"(" fill=")" << color << "\"/>\n";
}

void SvgCanvas::text(
    Pixel at,
    std::string_view content,
    const TextStyle& style) {
  out_ << R"(<text x=")" << at.x << R"(" y=")" << at.y << R"(" font-size=")"
       << style.size << R"(" fill=")" << style.color << R"(" text-anchor=")"
       << style.anchor << '"';
  if (style.bold) {
    out_ << R"( font-weight="600")";
  }
  if (style.upward) {
    out_ << R"( transform="rotate(-90 )" << at.x << ' ' << at.y << ")\"";
  }
  out_ << '>' << escaped_markup(content) << "</text>\n";
}

std::string SvgCanvas::document() const {
  return out_.str() + "</svg>\n";
}

void SvgCanvas::write_stroke(const Stroke& stroke) {
  out_ << R"( stroke=")" << stroke.color << R"(" stroke-width=")"
       << stroke.width << '"';
  if (stroke.opacity < 1) {
    out_ << R"( stroke-opacity=")" << stroke.opacity << '"';
  }
}

double text_width(std::string_view text, double size) {
  // Continuation bytes of UTF-8 are not characters.
  const auto characters = std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  });
  constexpr double kMeanWidth = 0.58;
  return kMeanWidth * size * static_cast<double>(characters);
}

} // namespace tessera::engine
