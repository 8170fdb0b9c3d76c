"use strict";
for (const choice of document.querySelectorAll("input[name=x]")) {
  const show = () => { if (choice.checked) document.body.dataset.x = choice.value; };
  choice.addEventListener("change", show);
  show(); // browsers keep a choice when a page is loaded again
}

const slider = document.getElementById("moment");
if (slider) {
  const moments = slider.dataset.moments.split(" ").map(Number);
  const show = () => {
    const moment = moments[slider.value];
    document.getElementById("moment-shown").textContent = moment;
    slider.setAttribute("aria-valuetext", `iteration ${moment}`);
    for (const figure of document.querySelectorAll("#gallery figure")) {
      const frames = [...figure.querySelectorAll("img[data-at]")];
      if (!frames.length) continue;
      const now = frames.filter((frame) => frame.dataset.at <= moment).pop() || frames[0];
      for (const frame of frames) frame.hidden = frame !== now;
      figure.querySelector(".shown").textContent = now.dataset.at;
    }
  };
  slider.addEventListener("input", show);
  show();
}

for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "copied";
    } catch { // not allowed: leave it to the keyboard
      getSelection().selectAllChildren(text);
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
