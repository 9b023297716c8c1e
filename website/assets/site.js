// The dialog of the search has no name for screen readers.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");

// A browser lets no page that was opened as a file read the search index, so the search says what it needs.
const field = document.querySelector(".md-search__input");
if (field && location.protocol === "file:") {
  field.placeholder = "Search needs a web server: python3 -m http.server";
  field.disabled = true;
}

// What scrolls sideways can be reached and scrolled with the keyboard.
addEventListener("load", () => {
  for (const wide of document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap")) {
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
  }
});
