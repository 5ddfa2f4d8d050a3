/// A page of documentation, as its fenced blocks. What a block is, its language says:
///
///   console    commands, one a line (a trailing backslash continues the line; "  # " begins a comment)
///   output     what the last command before it prints, "…" standing for anything
///   synopsis   how a command may be written, with [OPTIONAL] and WORDS
///   yaml       a recipe; the commands after it find it as mine.yaml
///   python     a program
///   cpp, cmake, sh   parts of a program that uses the library; tests/consumer has the whole
///   text       a drawing or a layout
#pragma once

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace sherd::test {

struct Fence {
  std::string page;  ///< relative to the source folder
  int line = 0;      ///< of its first line of text
  std::string language;
  std::vector<std::string> lines;

  std::string where() const { return page + ":" + std::to_string(line); }
};

/// README.md, CONTRIBUTING.md and every page below docs/.
inline std::vector<std::string> all_pages(const std::filesystem::path& root) {
  std::vector<std::string> pages = {"README.md", "CONTRIBUTING.md"};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") {
      pages.push_back(std::filesystem::relative(entry.path(), root).generic_string());
    }
  }
  std::sort(pages.begin() + 2, pages.end());
  return pages;
}

/// The same without docs/measured: dated results that are never edited.
inline std::vector<std::string> pages(const std::filesystem::path& root) {
  std::vector<std::string> pages = all_pages(root);
  std::erase_if(pages, [](const std::string& page) { return page.starts_with("docs/measured/"); });
  return pages;
}

inline std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline std::vector<Fence> fences_of(const std::filesystem::path& root, const std::string& page) {
  std::vector<Fence> fences;
  bool open = false;
  int number = 0;
  for (const std::string& line : lines_of(root / page)) {
    ++number;
    if (line.starts_with("```")) {
      open = !open;
      if (open) fences.push_back({page, number + 1, line.substr(3), {}});
    } else if (open) {
      fences.back().lines.push_back(line);
    }
  }
  return fences;
}

/// The page's text outside of fences, in one piece.
inline std::string prose_of(const std::filesystem::path& root, const std::string& page) {
  std::string text;
  bool open = false;
  for (const std::string& line : lines_of(root / page)) {
    if (line.starts_with("```")) open = !open;
    if (!open) text += line + "\n";
  }
  return text;
}

/// The commands of a `console` or `synopsis` block, spaces made one and comments left out.
inline std::vector<std::string> commands_of(const Fence& fence) {
  std::vector<std::string> commands;
  std::string command;
  for (const std::string& line : fence.lines) {
    command += std::regex_replace(line, std::regex(R"(^\s+|(^|\s+)# .*$|\s+$)"), "");
    if (command.ends_with("\\")) {
      command.back() = ' ';
      continue;
    }
    command = std::regex_replace(command, std::regex(" +"), " ");
    if (!command.empty()) commands.push_back(command);
    command.clear();
  }
  return commands;
}

}  // namespace sherd::test
