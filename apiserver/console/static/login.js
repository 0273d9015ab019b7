// A login link carries its code behind the #, which no browser sends. The form is filled in and not sent: a link that
// somebody else made must not sign a visitor in as somebody else.

const form = document.getElementById("login");
const code = location.hash.slice(1);
if (code) {
  history.replaceState(null, "", location.pathname + location.search);
  form.elements.code.value = code;
  document.getElementById("from-link").hidden = false;
  form.querySelector("button").focus();
}
