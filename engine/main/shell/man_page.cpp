#include "engine/main/shell/man_page.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <utility>

namespace sherd::main {
namespace {

// A line of roff text: no escapes, no requests, and hyphens that can be copied.
std::string roff(std::string_view text) {
  std::string out;
  if (text.starts_with('.') || text.starts_with('\'')) out = "\\&";
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '\n') {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out;
}

std::string title(std::string_view name, std::string_view version) {
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return fmt::format(".TH {} 1 \"\" \"sherd {}\" \"Sherd\"\n", upper, version);
}

constexpr std::array<std::pair<int, std::string_view>, 8> kCodes = {{
    {0, "Finished; everything promised is on disk."},
    {1, "Finished, but standard output couldn't be written."},
    {2, "A mistake in the command or the recipe, or too little memory."},
    {3, "A file: damaged, missing, a full disk."},
    {4, "Another rank stopped or didn't respond."},
    {5, "The run itself: a loss that isn't finite, or no memory."},
    {75, "Stopped by a signal or a limit of time and saved: start the same command again."},
    {130, "Stopped by Ctrl-C."},
}};

std::string exit_status() {
  std::string out = ".SH EXIT STATUS\n";
  for (const auto& [code, text] : kCodes) out += fmt::format(".TP\n.B {}\n{}\n", code, roff(text));
  return out;
}

std::string options_of(const CommandRow& command) {
  std::string out;
  for (const std::vector<OptionRow>* rows : {&command.positionals, &command.options}) {
    for (const OptionRow& row : *rows) {
      const bool is_positional = rows == &command.positionals;
      out += ".TP\n";
      if (is_positional) {
        out += fmt::format("\\fI{}\\fR\n", roff(row.value.empty() ? row.names[0] : row.value));
      } else {
        std::string names;
        for (const std::string& name : row.names) {
          names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", roff(name));
        }
        out += names + (row.value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(row.value)));
        out += "\n";
      }
      out += roff(row.help);
      if (!row.choices.empty()) {
        std::string choices;
        for (const std::string& choice : row.choices) {
          choices += (choices.empty() ? "" : ", ") + choice;
        }
        out += roff(fmt::format(" (one of {})", choices));
      }
      out += "\n";
    }
  }
  return out;
}

std::string synopsis_of(const CommandRow& command) {
  std::string out = fmt::format(".B sherd {}\n[\\fIOPTIONS\\fR]", roff(command.name));
  for (const OptionRow& row : command.positionals) {
    const std::string name = roff(row.value.empty() ? row.names[0] : row.value);
    const char* dots = row.may_repeat ? " ..." : "";
    out += row.is_required ? fmt::format(" \\fI{}\\fR{}", name, dots)
                           : fmt::format(" [\\fI{}\\fR{}]", name, dots);
  }
  return out + "\n";
}

}  // namespace

std::string man_page(const std::vector<CommandRow>& commands, std::string_view version) {
  std::string out = title("sherd", version);
  out +=
      ".SH NAME\nsherd \\- train transformers with sharded state\n"
      ".SH SYNOPSIS\n.B sherd\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"
      ".SH DESCRIPTION\n"
      "Sherd trains transformers whose parameters, gradients and optimizer state are sharded over "
      "ranks (ZeRO stages 0 to 3).\n"
      "A recipe, a YAML file, describes a run;\n.B sherd recipe \\-\\-help\\-fields\n"
      "prints all of its keys.\n"
      "Each command has a page of its own, such as\n.BR sherd\\-train (1).\n"
      ".SH COMMANDS\n";
  for (const CommandRow& command : commands) {
    out += fmt::format(".TP\n.B {}\n{}\n", roff(command.name), roff(command.help));
  }
  out +=
      ".SH OPTIONS\n.TP\n.B \\-\\-help\nPrint help and exit; also after a command.\n"
      ".TP\n.B \\-\\-version\nPrint the version and exit.\n";
  return out + exit_status();
}

std::string man_page(const CommandRow& command, std::string_view version) {
  std::string out = title("sherd-" + command.name, version);
  out += fmt::format(".SH NAME\nsherd\\-{} \\- {}\n", roff(command.name), roff(command.help));
  out += ".SH SYNOPSIS\n" + synopsis_of(command);
  out += fmt::format(".SH DESCRIPTION\n{}.\n.SH OPTIONS\n", roff(command.help));
  return out + options_of(command) + exit_status() + ".SH SEE ALSO\n.BR sherd (1)\n";
}

}  // namespace sherd::main
